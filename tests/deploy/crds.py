# SPDX-License-Identifier: Apache-2.0
"""Objects that Kubernetes itself does not know, checked against the models of their own projects.

The models accept fields that they do not know and drop them. So an object is read and written again: what is missing
then is a field that does not exist.
"""

from cloudcoil.models.prometheus_operator import v1 as monitoring
from hera.workflows import models as argo

MODELS = {
    "ServiceMonitor": monitoring.ServiceMonitor,
    "PrometheusRule": monitoring.PrometheusRule,
    "Workflow": argo.Workflow,
    "CronWorkflow": argo.CronWorkflow,
    "WorkflowTemplate": argo.WorkflowTemplate,
}


def lost(given, kept, where=""):
    """The places of `given` that `kept` has not."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            place = f"{where}.{key}"
            if key not in kept:
                yield place
            else:
                yield from lost(value, kept[key], place)
    elif isinstance(given, list) and isinstance(kept, list):
        if len(given) != len(kept):
            yield where
        for number, (one, other) in enumerate(zip(given, kept)):
            yield from lost(one, other, f"{where}[{number}]")


def check(document):
    """Raises what is wrong with an object of one of the kinds above."""
    read = MODELS[document["kind"]].model_validate(document)
    kept = read.model_dump(by_alias=True, exclude_unset=True, mode="json")
    unknown = list(lost(document, kept))
    if unknown:
        raise ValueError(f"{document['kind']}: no such fields: {', '.join(unknown)}")
