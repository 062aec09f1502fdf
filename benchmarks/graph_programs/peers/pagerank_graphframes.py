"""PageRank with GraphFrames (0.8): its own function, whose ranks sum up to the number of pages. Not run here."""

from graphframes import GraphFrame
from pyspark.sql import SparkSession


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    links = spark.read.csv("slashdot.tsv", sep="\t", schema="src LONG, dst LONG")
    pages = links.selectExpr("src AS id").union(links.selectExpr("dst AS id")).distinct()
    ranked = GraphFrame(pages, links).pageRank(resetProbability=0.15, tol=1e-8).vertices
    best = ranked.orderBy("pagerank", ascending=False).first()
    print({"total": ranked.groupBy().sum("pagerank").first()[0], "best": best["id"], "most": best["pagerank"]})
