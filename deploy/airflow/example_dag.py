# SPDX-License-Identifier: Apache-2.0
"""A DAG that keeps one table up to date every quarter of an hour."""

from datetime import datetime, timedelta, timezone

from airflow import DAG
from tributary_airflow.operator import TributaryBatchOperator

with DAG(
    dag_id="orders_enriched",
    schedule=timedelta(minutes=15),
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    # Cursors are in the target: a run reads all that is new, so there is nothing to catch up on.
    catchup=False,
    # A second run of one pipeline would only wait for the first.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
) as dag:
    TributaryBatchOperator(
        task_id="merge",
        server="http://tributary.data.svc:7373",
        pipeline_file="/opt/airflow/pipelines/orders_enriched.toml",
        timeout=timedelta(hours=1),
    )
