"""Dashboards of panels, and the JSON that Grafana loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

COLUMNS = 24  # of Grafana's grid
SCHEMA_VERSION = 39
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

RUN = 'namespace="$namespace"'
"""Selects the run that was chosen."""
PODS = f'{RUN}, pod=~"$pod"'
"""Selects the processes that were chosen."""


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and how each of its series is called (``{{label}}`` is filled in)."""

    expression: str
    legend: str = "{{pod}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. ``unit`` is one of Grafana's; ``width`` in columns of 24, ``height`` in rows.

    ``limits`` colours values from these bounds on (yellow, red). ``maximum``: top of the axis.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    limits: tuple[float, ...] = ()
    mappings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour for single values."""

    def to_json(self, identity: int, x: int, y: int) -> Json:
        """What Grafana calls a panel, at a place of the grid."""
        return {
            "id": identity,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(index, query) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
        }

    def _target(self, index: int, query: Query) -> Json:
        return {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expression,
            "legendFormat": query.legend,
            "range": self.kind != "table",
            "instant": self.kind == "table",
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _defaults(self) -> Json:
        colors = ("yellow", "red")
        steps: list[Json] = [{"color": "green", "value": None}]
        steps += [{"color": colors[min(i, 1)], "value": limit} for i, limit in enumerate(self.limits)]
        defaults: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.minimum is not None:
            defaults["min"] = self.minimum
        if self.maximum is not None:
            defaults["max"] = self.maximum
        if self.mappings:
            values = {value: {"text": text, "color": color} for value, (text, color) in self.mappings.items()}
            defaults["mappings"] = [{"type": "value", "options": values}]
        if self.kind == "timeseries":
            defaults["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 25 if self.stacked else 0,
                "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if self.limits else "off"},
            }
        return defaults

    def _options(self) -> Json:
        if self.kind == "stat":
            return {
                "colorMode": "value" if self.limits or self.mappings else "none",
                "graphMode": "none" if self.mappings else "area",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "textMode": "auto",
            }
        if self.kind == "table":
            return {"showHeader": True}
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, side by side as long as they fit."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """``uid`` is the name of its file and part of its address."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]

    def to_json(self) -> Json:
        """What Grafana loads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["headrace"],
            "editable": True,
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "graphTooltip": 1,
            "refresh": "15s",
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "links": [_link()],
            "templating": {"list": _variables()},
            "annotations": {"list": [_annotation()]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        panels: list[Json] = []
        y = 0
        for row in self.rows:
            panels.append(_heading(row.title, len(panels) + 1, y))
            x, y, height = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                panels.append(panel.to_json(len(panels) + 1, x, y))
                x, height = x + panel.width, max(height, panel.height)
            y += height
        return panels


def _heading(title: str, identity: int, y: int) -> Json:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": identity, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}


def _variables() -> list[Json]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _label_values("namespace", "Run", "label_values(headrace_build_info, namespace)", several=False),
        _label_values("pod", "Process", f"label_values(headrace_build_info{{{RUN}}}, pod)", several=True),
    ]


def _label_values(name: str, label: str, query: str, *, several: bool) -> Json:
    variable: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": several,
        "includeAll": several,
    }
    if several:
        variable |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return variable


def _annotation() -> Json:
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": f'ALERTS{{alertname=~"Headrace.*", alertstate="firing", {RUN}}}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{pod}} {{reason}}",
    }


def _link() -> Json:
    return {
        "title": "Headrace",
        "type": "dashboards",
        "tags": ["headrace"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def rate(counter: str, by: str = "pod", *, where: str = "", selector: str = PODS) -> str:
    """Growth of a counter a second, summed by labels (empty: over everything)."""
    selected = ", ".join(part for part in (selector, where) if part)
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({counter}{{{selected}}}[$__rate_interval]))"


def quantile(quantile: float, histogram: str, by: str = "") -> str:
    """Quantile of a histogram's observations, by labels (empty: of all processes together)."""
    labels = ", ".join(part for part in ("le", by) if part)
    return (
        f"histogram_quantile({quantile:g}, "
        f"sum by ({labels}) (rate({histogram}_bucket{{{PODS}}}[$__rate_interval])))"
    )


def spread(histogram: str) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile of a histogram over all processes that were chosen."""
    return tuple(Query(quantile(share, histogram), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))
