"""Communities with GraphFrames (0.8): its own function, with a fixed number of passes. Not run here."""

from graphframes import GraphFrame
from pyspark.sql import SparkSession


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    friends = spark.read.csv("facebook.tsv", sep="\t", schema="src LONG, dst LONG")
    people = friends.selectExpr("src AS id").union(friends.selectExpr("dst AS id")).distinct()
    sizes = GraphFrame(people, friends).labelPropagation(maxIter=20).groupBy("label").count()
    print({"communities": sizes.count(), "largest": sizes.groupBy().max("count").first()[0]})
