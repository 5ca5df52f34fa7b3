# SPDX-License-Identifier: Apache-2.0
"""Runs batches of a Tributary server from Airflow: see `operator.py`."""
