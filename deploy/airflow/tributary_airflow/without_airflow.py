# SPDX-License-Identifier: Apache-2.0
"""What the operator needs of Airflow, where Airflow is not installed: so that it can be tested without."""


class AirflowException(Exception):
    """This attempt failed."""


class AirflowFailException(AirflowException):
    """The task failed; no retry helps."""


class AirflowSkipException(AirflowException):
    """There was nothing to do."""


class BaseOperator:
    """Takes the name of a task, as Airflow's does."""

    def __init__(self, *, task_id, **unknown):
        if unknown:
            raise TypeError(f"without Airflow these arguments mean nothing: {', '.join(unknown)}")
        self.task_id = task_id
