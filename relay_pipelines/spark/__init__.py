"""Runs the copy with PySpark.

session             starts or joins a Spark session
job                 the job that copies ranges as they are
package_archive     ships this package to executors
task_python         names what is wrong with the Python of tasks
sql_rows            the job that passes records through SQL
defaults            what a session is configured with
answering           whether Spark, or a server of it, answers in time
yarn                YARN: where its configuration is, and its page
jvm                 the JVM of a driver, started without Spark's scripts
without_pandas      keeps PySpark from importing pandas
class_archive       an archive of Spark's classes, for a faster start
settings_file       Spark's settings in a file that only its user may read
connect_channel     how a Spark Connect server is reached, without a proxy on this machine
daemon              imports the copy once for all Python workers of a local session
"""
