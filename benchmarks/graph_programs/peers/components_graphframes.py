"""Connected components with GraphFrames (0.8): its own function. Not run here."""

from graphframes import GraphFrame
from pyspark.sql import SparkSession


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setCheckpointDir("checkpoints")
    links = spark.read.csv("enron.tsv", sep="\t", schema="src LONG, dst LONG")
    nodes = links.selectExpr("src AS id").union(links.selectExpr("dst AS id")).distinct()
    sizes = GraphFrame(nodes, links).connectedComponents().groupBy("component").count()
    print({"components": sizes.count(), "largest": sizes.groupBy().max("count").first()[0]})
