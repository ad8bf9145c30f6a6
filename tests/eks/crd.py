"""The MPIJob CRD of mpi-operator 0.8 as a strict schema: what it does not name is refused.

Words that the CRD leaves open and mpi-operator does not: pkg/apis/kubeflow/validation/validation.go and v2beta1/types.go.
"""

import functools
from pathlib import Path
from typing import Any

CRD = Path(__file__).parent / "schemas/kubeflow.org_mpijobs.v2beta1.yaml"


def errors(document: dict[str, Any]) -> list[str]:
    """What the CRD has against an MPIJob: path and sentence each."""
    return [f"{one.json_path}: {one.message}" for one in _validator().iter_errors(document)]


@functools.cache
def _validator() -> Any:
    import jsonschema
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with CRD.open() as file:
        schema = yaml.load(file, loader)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    metadata = {"name": {"type": "string", "maxLength": 63}, "namespace": {"type": "string"}}
    metadata |= {name: {"type": "object", "additionalProperties": {"type": "string"}} for name in _MAPS}
    schema["properties"]["metadata"] = {"type": "object", "properties": metadata, "required": ["name"]}
    pods = schema["properties"]["spec"]["properties"]["mpiReplicaSpecs"]["additionalProperties"]["properties"]
    pods["template"]["properties"]["metadata"] = {"type": "object", "properties": {_MAPS[0]: metadata[_MAPS[0]]}}
    spec = schema["properties"]["spec"]["properties"]
    spec["launcherCreationPolicy"]["enum"] = ["AtStartup", "WaitForWorkersReady"]
    spec["runPolicy"]["properties"]["cleanPodPolicy"]["enum"] = ["None", "Running", "All"]
    pods["restartPolicy"]["enum"] = ["Never", "OnFailure"]
    return jsonschema.Draft4Validator(_strict(schema))


_MAPS = ("labels", "annotations")


def _strict(schema: Any) -> Any:
    """The same, with every object that names its fields taking no other; null is no value, as for `kubectl --validate`."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made.pop("anyOf", None)
        made["type"] = ["integer", "string"]
    return made
