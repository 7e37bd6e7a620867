"""Kubernetes: an Indexed Job in which each completion index is a shard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.fleet.launch_plan import LaunchPlan

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", re.ASCII)  # with the index it names a pod
_SIZE = re.compile(r"\d{1,6}(\.\d{1,3})?([KMGT]i|[kMGT])?", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z][\w/.-]*", re.ASCII)  # a key that YAML reads as a text
_SIGNS = '\\"'  # that a text in double quotes cannot hold as they are
_ESCAPED = re.compile(r"[^ !#-\[\]-~]")
_LAST_SHORT = 0xFFFF  # of characters that four digits name
_RUNS = "/runs"
_ENDING_S = 90  # after SIGTERM: requests are cut, and what was measured is written
_MEMORY = "1Gi"
_PORTS = "1024 65535"  # the kernel's default has 28,232


class KubernetesJob(msgspec.Struct, frozen=True):
    """What of a manifest is not of the load; `claim` is a volume that outlives the pods, for their runs."""

    image: str
    claim: str
    name: str = "loadgen"
    namespace: str | None = None
    secret: str | None = None  # NAME/KEY of the API key
    memory: str = _MEMORY

    def __post_init__(self) -> None:
        """Raises UsageError where Kubernetes would refuse a name."""
        for flag, name in (("--name", self.name), ("--claim", self.claim)):
            if not _NAME.fullmatch(name):
                raise UsageError(f"{flag} {name}: give lower-case letters, digits and -, 52 at most")
        if not _SIZE.fullmatch(self.memory):
            raise UsageError(f"--memory {self.memory}: give bytes, or a size as 512Mi or 2Gi")
        if self.secret is not None and self.secret.count("/") != 1:
            raise UsageError(f"--secret {self.secret}: give NAME/KEY, of a Secret that holds the API key")

    def manifest(self, plan: LaunchPlan, start_s: int) -> dict[str, Any]:
        """The Job, as Kubernetes' API has it; all shards begin at `start_s`, seconds since 1970."""
        labels = {"app.kubernetes.io/name": "loadgen", "app.kubernetes.io/instance": self.name}
        place = {} if self.namespace is None else {"namespace": self.namespace}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, **place, "labels": labels},
            "spec": {
                "completions": plan.shards,
                "parallelism": plan.shards,
                "completionMode": "Indexed",
                # A shard that failed is not started again: the others have begun, and go on.
                "backoffLimitPerIndex": 0,
                "maxFailedIndexes": plan.shards,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": _ENDING_S,
                        "automountServiceAccountToken": False,
                        "securityContext": {
                            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": _PORTS}],
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "topologySpreadConstraints": [
                            {
                                "maxSkew": 1,
                                "topologyKey": "kubernetes.io/hostname",
                                "whenUnsatisfiable": "ScheduleAnyway",
                                "labelSelector": {"matchLabels": labels},
                            }
                        ],
                        "containers": [self._container(plan, start_s)],
                        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": self.claim}}],
                    },
                },
            },
        }

    def runs(self, start_s: int) -> str:
        """Where in the volume the shards' run directories come to lie."""
        return f"{self.name}-{start_s}"

    def _container(self, plan: LaunchPlan, start_s: int) -> dict[str, Any]:
        asked = {"cpu": str(plan.cpus), "memory": self.memory}
        words = plan.words(
            *("--shard", f"auto/{plan.shards}", "--start-at", str(start_s)),
            *("--run-dir", f"{_RUNS}/{self.runs(start_s)}", "--quiet"),
        )
        return {
            "name": "shard",
            "image": self.image,
            "command": [word.replace("$", "$$") for word in words],  # $(NAME) would be a variable
            **({"env": [self._key()]} if self.secret else {}),
            # No limit on CPU: one that is reached stops the client for a while, in the middle of its times.
            "resources": {"requests": asked, "limits": {"memory": self.memory}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "runs", "mountPath": _RUNS}],
        }

    def _key(self) -> dict[str, Any]:
        name, _, key = (self.secret or "").partition("/")
        return {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}

    def text(self, plan: LaunchPlan, start_s: int, start: str) -> str:
        """The manifest in YAML, after what a person must know of it."""
        directory = self.runs(start_s)
        remarks = (
            f"{plan.shards} shards of one plan, which begin together at {start}: apply this at once.",
            "A shard that is not ready by then measures nothing, and its log says so.",
            f"The claim {self.claim} takes the run directories in {directory}/; on several nodes it must be",
            "ReadWriteMany. Where it is mounted afterwards:",
            f"  loadgen merge {directory}/*-shard-*",
            "A pod has its own addresses and ports; its limit on open files is the container runtime's",
            "(`ulimit -n` there): each request under way needs one.",
            "Kubernetes 1.29 or newer: a shard that failed leaves the others running (backoffLimitPerIndex).",
        )
        heading = "".join(f"# {line}\n" for line in remarks)
        return heading + "".join(f"{line}\n" for line in _yaml(self.manifest(plan, start_s)))


def _yaml(value: Mapping[str, Any] | Sequence[Any], indent: str = "") -> Iterator[str]:
    """Tables and lists as lines of YAML; every text that is not a plain key is quoted."""
    rows: list[tuple[str, Any]] = (
        [(f"{key if _PLAIN.fullmatch(key) else _quoted(key)}:", of) for key, of in value.items()]
        if isinstance(value, Mapping)
        else [("-", of) for of in value]
    )
    for head, of in rows:
        if not isinstance(of, Mapping | list) or not of:
            yield f"{indent}{head} {_quoted(of) if isinstance(of, str) else json.dumps(of)}"
        elif head == "-":
            first, *rest = _yaml(of, f"{indent}  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}{head}"
            yield from _yaml(of, f"{indent}  ")


def _quoted(text: str) -> str:
    """A text as YAML's double quotes hold it; what is not ASCII is escaped by the number of its character."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    """JSON writes a character beyond U+FFFF as a pair of surrogates, which YAML refuses."""
    sign, number = match[0], ord(match[0])
    if sign in _SIGNS:
        return f"\\{sign}"
    return f"\\u{number:04x}" if number <= _LAST_SHORT else f"\\U{number:08x}"
