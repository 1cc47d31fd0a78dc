"""What a Spark session is configured with unless relay.yaml says otherwise."""

TASK_ATTEMPTS = 4
# only the C1 compiler: this JVM schedules tasks, and the copy is Python; it starts with little more
# than half the CPU time
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": str(TASK_ATTEMPTS),
}
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.python.daemon.module": "relay_pipelines.spark.daemon",
    "spark.driver.extraJavaOptions": SMALL_JVM,
}
"""Settings of a session on this machine."""
