#!/bin/sh
# Runs the command of the container. Spark on Kubernetes starts its executors with the one argument
# "executor" and the rest in variables (KubernetesExecutorBackend).
set -eu
# OpenShift chooses a user id that has no name; Hadoop, in Spark, refuses such a user
if ! getent passwd "$(id -u)" > /dev/null; then
  NSS_WRAPPER_PASSWD=$(mktemp)
  echo "relay:x:$(id -u):$(id -g)::/var/lib/relay:/usr/sbin/nologin" > "$NSS_WRAPPER_PASSWD"
  export NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP=/etc/group LD_PRELOAD=libnss_wrapper.so
fi
[ "${1:-}" = executor ] || exec "$@"

classpath="$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: an option each, which may contain spaces
set --
number=0
while option=$(printenv "SPARK_JAVA_OPT_$number"); do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "$classpath" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
