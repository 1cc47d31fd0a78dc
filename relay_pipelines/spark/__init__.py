"""Runs the copy with PySpark.

session             starts or joins a Spark session
job                 the job that copies ranges as they are
sql_rows            the job that passes records through SQL
properties_file     Spark's settings in a file that only its user may read
answering           whether Spark answers in time
class_archive       an archive of Spark's classes, for a faster start
package_archive     ships this package to executors
connect_server      a Spark Connect server on this machine
connectivity        checks that a master or server accepts connections
task_python         names what is wrong with the Python of tasks
daemon              imports the copy once for all Python workers of a local session
"""
