"""The tags and metadata of a run in SQL, as trajectories/build.py reads them: what its root says, what processes that
joined it say, and of a run without an agent what a call says."""

from __future__ import annotations

from typing import Final

from arttrace.records import semconv
from arttrace.store.rows.view_parts.definition import of_document

IS_CALL: Final = f"operation IN {semconv.CALL_OPERATIONS}"
OWN_TAGS: Final = f"TRY_CAST({of_document('arttrace.tags', operator='->')} AS VARCHAR[])"
OWN_METADATA: Final = f"TRY_CAST({of_document('arttrace.metadata')} AS JSON)"

IS_TOP_AGENT: Final = "(operation IS NOT DISTINCT FROM 'invoke_agent' AND parent_span_id IS NULL)"
"""The root of a run of another SDK, which knows no entries."""
IN_ORDER: Final = "s.start_ns, s.trace_id, s.span_id"
COUNT: Final = "count(*) FILTER (s.operation = '{}')"


def _said(attribute: str, value: str) -> str:
    """What a run's entry says of it, and, as trajectories/build.py reads it, what processes that joined it say."""
    joined = f"""({IS_CALL}) IS NOT TRUE AND contains(document, '"{attribute}"')
                AND ({of_document(semconv.TRAJECTORY_ID)}) IS NOT NULL"""
    return f"CASE WHEN entry IS NOT NULL OR {IS_TOP_AGENT} OR ({joined}) THEN {value} END"


_TAGS_OF_CALL = f"""CASE WHEN {COUNT.format("invoke_agent")} = 0
        THEN list(s.tags_of_call ORDER BY {IN_ORDER}) FILTER (len(s.tags_of_call) > 0)[1] END"""
"""Of a run without an agent, those of the first call that has some."""
_JOINED_TAGS = f"list(s.tags ORDER BY s.entry IS NULL, {IN_ORDER}) FILTER (s.tags IS NOT NULL)"
_ALL_TAGS = f"flatten(nullif(list_concat([{_TAGS_OF_CALL}], {_JOINED_TAGS}), [NULL]))"
TAGS: Final = f"list_filter({_ALL_TAGS}, lambda tag, place: list_position({_ALL_TAGS}, tag) = place)"
_MAPS = f"list(s.said ORDER BY s.entry IS NOT NULL, {IN_ORDER}) FILTER (s.said IS NOT NULL)"
_IS_APART = f"(({IS_CALL}) IS TRUE OR ({of_document(semconv.TRAJECTORY_ID)}) IS NULL)"
"""Whether this is a call, or a span of another system, and not of a process that joined the run."""
_SAYS_OF_RUN = f"""(({IS_CALL}) IS TRUE AND (scenario IS NOT NULL OR group_key IS NOT NULL)
                OR contains(document, '"{semconv.METADATA}"') AND {OWN_METADATA} IS NOT NULL AND {_IS_APART})"""
"""Whether a call says something of its run, which counts where that has no agent: of the first such call all."""
_OF_CALL = f"CASE WHEN {COUNT.format('invoke_agent')} = 0 THEN min_by(s.of_call, ({IN_ORDER})) END"
_MERGED = "to_json(list_reduce({}, lambda said, later: map_concat(said, later)))"
METADATA: Final = f"""CASE WHEN ({_OF_CALL}).said IS NOT NULL
        THEN {_MERGED.format(f"list_append(coalesce({_MAPS}, []), ({_OF_CALL}).said)")}
        WHEN count(s.metadata) < 2 THEN any_value(s.metadata) ELSE {_MERGED.format(_MAPS)} END"""

SAID_BY_SPAN: Final = f"""\
{_said(semconv.TAGS, OWN_TAGS)} AS tags,
            {_said(semconv.METADATA, OWN_METADATA)} AS metadata,
            CASE WHEN contains(document, '"{semconv.TAGS}"') AND {_IS_APART} THEN {OWN_TAGS} END AS tags_of_call,
            TRY_CAST(metadata AS MAP(VARCHAR, JSON)) AS said,
            CASE WHEN {_SAYS_OF_RUN} THEN {{'said': TRY_CAST({OWN_METADATA} AS MAP(VARCHAR, JSON))}} END AS of_call"""
"""The columns of each span from which `TAGS` and `METADATA` are made."""
