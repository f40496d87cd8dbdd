"""Schemas of the custom resources that the chart makes, as far as it uses them: unknown fields are refused.

Written from the definitions of Gateway API 1.4, Prometheus' operator 0.86, KEDA 2.18 and KubeRay 1.4.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}


def fields(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object with these fields. required: names of those that must be there."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required.split(),
    }


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def texts(values: Schema = TEXT) -> Schema:
    return {"type": "object", "additionalProperties": values}


def resource(version: str, spec: Schema) -> Schema:
    """Return the schema of a resource."""
    metadata = fields("name", name=TEXT, labels=texts(), annotations=texts())
    return fields(
        "apiVersion kind metadata spec", apiVersion={"const": version}, kind=TEXT, metadata=metadata, spec=spec
    )


_MATCH = fields(
    path=fields(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value={"type": "string", "pattern": "^/"})
)
_PARENT = fields("name", name=TEXT, namespace=TEXT, sectionName=TEXT, port=NUMBER, kind=TEXT, group=TEXT)
_RULE = fields(
    matches=list_of(_MATCH),
    backendRefs=list_of(fields("name", name=TEXT, port=NUMBER, weight=NUMBER)),
    timeouts=fields(request=DURATION, backendRequest=DURATION),
)
_SCALING = fields(
    stabilizationWindowSeconds=NUMBER,
    policies=list_of(fields("type value periodSeconds", type=TEXT, value=NUMBER, periodSeconds=NUMBER)),
)
_TRIGGER = fields(
    "type metadata",
    type=TEXT,
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    metadata=texts(),
)
_ALERT = fields("expr", alert=TEXT, record=TEXT, expr=TEXT, labels=texts(), annotations=texts(), **{"for": TEXT})
_TEMPLATE = {"type": "object", "required": ["metadata", "spec"]}  # a pod's, which is tried by itself

SCHEMAS: dict[str, Schema] = {
    "HTTPRoute": resource(
        "gateway.networking.k8s.io/v1",
        fields(parentRefs=list_of(_PARENT), hostnames=list_of(TEXT), rules=list_of(_RULE)),
    ),
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        fields(
            "selector endpoints",
            jobLabel=TEXT,
            selector=fields(matchLabels=texts()),
            endpoints=list_of(fields(port=TEXT, path=TEXT, interval=TEXT)),
        ),
    ),
    "PrometheusRule": resource(
        "monitoring.coreos.com/v1",
        fields(groups=list_of(fields("name rules", name=TEXT, interval=TEXT, rules=list_of(_ALERT)))),
    ),
    "ScaledObject": resource(
        "keda.sh/v1alpha1",
        fields(
            "scaleTargetRef triggers",
            scaleTargetRef=fields("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
            minReplicaCount=NUMBER,
            maxReplicaCount=NUMBER,
            pollingInterval=NUMBER,
            cooldownPeriod=NUMBER,
            advanced=fields(
                horizontalPodAutoscalerConfig=fields(behavior=fields(scaleUp=_SCALING, scaleDown=_SCALING))
            ),
            triggers=list_of(_TRIGGER),
        ),
    ),
    "RayCluster": resource(
        "ray.io/v1",
        fields(
            "headGroupSpec",
            rayVersion=TEXT,
            headGroupSpec=fields("template", rayStartParams=texts(), template=_TEMPLATE),
            workerGroupSpecs=list_of(
                fields(
                    "groupName template",
                    groupName=TEXT,
                    replicas=NUMBER,
                    minReplicas=NUMBER,
                    maxReplicas=NUMBER,
                    rayStartParams=texts(),
                    template=_TEMPLATE,
                )
            ),
        ),
    ),
}
