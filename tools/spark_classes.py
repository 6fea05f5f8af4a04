"""Write the Java classes that Spark's sessions in tests load into one file, which later sessions map into memory.

    python tools/spark_classes.py .cache/spark-classes.jsa

To start a session and run its first query costs half the processor time with it. A Java of another version, or other
jars, pass the file by; so does everything when it is missing. It holds what one session loads that reads, shuffles and
writes as most tests do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import lanner
import lanner.spark
from lanner.testing.process import BrokerProcess

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as in tests/conftest.py


def work(folder: Path, servers: str) -> int:
    """What most tests do. Java is awaited, because it writes the file when it ends."""
    spark = lanner.spark.session("classes", config={"spark.sql.shuffle.partitions": 2})
    spark.sparkContext.setLogLevel("OFF")
    spark.range(100).selectExpr("cast(id as string) as value").write.format("lanner").mode("append").options(
        servers=servers, topic="numbers"
    ).save()
    stream = spark.readStream.format("lanner").options(servers=servers, subscribe="numbers", startingOffsets="earliest")
    stream.load().createOrReplaceTempView("numbers")
    counted = spark.sql("select topic, count(*) as messages from numbers group by topic")
    for name, frame, mode in (("noop", counted, "complete"), ("parquet", stream.load(), "append")):
        writer = frame.writeStream.format(name).outputMode(mode).option("path", str(folder / "table"))
        query = writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
        query.awaitTermination()
    assert spark.read.parquet(str(folder / "table")).count() == 100
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()
    return int(java.wait())


def main() -> int:
    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}-{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with BrokerProcess(folder / "data", settings={"disk_reserve_bytes": 0}) as broker:
            with lanner.sync.connect(broker.native) as queue:
                queue.admin.create_topic("numbers")
            work(folder, broker.native)
    if unfinished.exists():
        unfinished.replace(target)
    else:
        print("this Java writes no classes: tests run without, more slowly", file=sys.stderr)
        target.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
