"""The tour of docs/spark.md: from orders to a table of revenue, alerts, an archive with its audit, a report.

Start a broker with `lanner up`, then: python examples/spark_tour.py
Tables, checkpoints, archive and report go to ./tour. Another broker and another folder can be named:
python examples/spark_tour.py HOST:PORT FOLDER
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lanner
import lanner.spark
from lanner.spark.archive.archiving import Archiver
from lanner.spark.archive.auditing import audit_archive
from lanner.spark.reports.reporting import report, source_frame, write

servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:7400"
folder = sys.argv[2] if len(sys.argv) > 2 else "./tour"
opening = datetime(2026, 11, 16, 9, tzinfo=UTC)
orders = [
    {
        "customer": f"customer-{number % 40}",
        "at": (opening + timedelta(seconds=6 * number)).isoformat(),
        "amount": 1500 + number if number % 97 == 50 else 5 + number % 20,
    }
    for number in range(600)
]
queue = lanner.sync.connect(servers)
queue.admin.create_topic("orders", partitions=2)
queue.publish_many("orders", [json.dumps(order) for order in orders], keys=[order["customer"] for order in orders])
print("orders:", [part.end_offset for part in queue.admin.describe("orders").partitions])

spark = lanner.spark.session("tour", config={"spark.sql.session.timeZone": "UTC"})
stream = spark.readStream.format("lanner").options(servers=servers, subscribe="orders", startingOffsets="earliest")
sold = (
    stream.load()
    .selectExpr("key", "from_json(cast(value as string), 'at timestamp, amount double') as sale")
    .selectExpr("key", "sale.at", "sale.amount")
)
windows = sold.withWatermark("at", "5 minutes").selectExpr("window(at, '10 minutes') as window", "amount")
revenue = (
    windows.groupBy("window")
    .agg({"amount": "sum", "*": "count"})
    .selectExpr("window.start as from", "`count(1)` as orders", "`sum(amount)` as revenue")
)
query = (
    revenue.writeStream.format("parquet")
    .options(path=f"{folder}/revenue", checkpointLocation=f"{folder}/checkpoints/revenue")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.read.parquet(f"{folder}/revenue").orderBy("from").show()

queue.admin.create_topic("alerts", partitions=1)
alerts = sold.where("amount > 1000").selectExpr("key", "struct(at, amount) as value", "9 as priority")
query = (
    alerts.writeStream.format("lanner")
    .options(servers=servers, topic="alerts", valueFormat="json", checkpointLocation=f"{folder}/checkpoints/alerts")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
with queue.consumer("alerts", group="desk") as consumer:
    for message in consumer.poll(max_messages=3):
        print(message.priority, message.key, message.text())
        message.ack()

*_, last = Archiver(spark, servers, f"{folder}/archive", ["orders", "alerts"]).run()
print(f"archived {last.messages} messages in {last.files} files, {last.lag} behind")
lanner.spark.read_archive(spark, f"{folder}/archive").groupBy("topic").count().orderBy("topic").show()

for topic in audit_archive(spark, servers, f"{folder}/archive"):
    print(topic.topic, "is complete" if topic.is_clean else topic.as_json())

made = report(
    spark,
    source_frame(spark, servers, "orders", f"{folder}/archive"),
    "orders",
    window_ms=None,
    tell=lambda *_: None,
)
written = write(made, Path(folder, "report"))
print(f"{written.page.name}: {made.total.messages} messages, {made.total.bytes} bytes")
spark.stop()
queue.close()
