"""Shortest paths with GraphFrames (0.8) by aggregateMessages: its own function takes no lengths. Not run here."""

from graphframes import GraphFrame
from graphframes.lib import AggregateMessages
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

START = 0


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setCheckpointDir("checkpoints")
    roads = spark.read.csv("slashdot.tsv", sep="\t", schema="src LONG, dst LONG")
    places = roads.selectExpr("src AS id").union(roads.selectExpr("dst AS id")).distinct()
    degree = roads.groupBy("src").count().withColumn("length", f.log2(1 + f.col("count"))).drop("count")
    places = places.withColumn("distance", f.when(f.col("id") == START, 0.0).otherwise(float("inf")))
    roads = roads.join(degree, "src").cache()
    changed = True
    while changed:
        offered = AggregateMessages.src["distance"] + AggregateMessages.edge["length"]
        nearest = GraphFrame(places, roads).aggregateMessages(
            f.min(AggregateMessages.msg).alias("nearest"), sendToDst=offered
        )
        joined = places.join(nearest, "id", "left")
        new = joined.withColumn("new", f.least("distance", f.coalesce("nearest", f.lit(float("inf")))))
        changed = new.filter("new < distance").limit(1).count() > 0
        places = AggregateMessages.getCachedDataFrame(new.selectExpr("id", "new AS distance"))
    reached = places.filter(f.col("distance") < float("inf"))
    print({"reached": reached.count(), "furthest": reached.groupBy().max("distance").first()[0]})
