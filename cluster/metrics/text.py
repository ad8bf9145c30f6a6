"""Prometheus' text format, version 0.0.4: families of samples, each with its help and its type."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """Value with its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass
class Family:
    """Metric family: all samples of one name."""

    name: str
    help: str
    kind: str = "gauge"  # or counter
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float | None, **labels: object) -> None:
        """Add a sample, unless the value is None."""
        if value is not None:
            self.samples.append(Sample({name: str(label) for name, label in labels.items()}, float(value)))


def text_of(families: Iterable[Family]) -> str:
    """Format the families that have samples.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines = []
    for family in families:
        if family.samples:
            lines += [f"# HELP {family.name} {_escaped(family.help, '')}", f"# TYPE {family.name} {family.kind}"]
            lines += [_line(family.name, sample) for sample in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(label, chr(34))}"' for key, label in sample.labels.items())
    return f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)


def _escaped(text: str, quote: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace(quote, "\\" + quote) if quote else escaped
