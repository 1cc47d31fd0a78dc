"""Runs the copy with PySpark.

session             starts or joins a Spark session
job                 the job that copies ranges as they are
sql_rows            the job that passes records through SQL
package_archive     ships this package to executors
connectivity        checks that a master or server accepts connections
daemon              imports the copy once for all Python workers of a local session
"""
