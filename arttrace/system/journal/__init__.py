"""Checksummed append-only segments: the capture's spool and the store's journal."""

from arttrace.system.journal.reader import LostStretch, Segment, SegmentReader, list_segments, read_segment
from arttrace.system.journal.writer import JournalFull, JournalWriter

__all__ = ["JournalFull", "JournalWriter", "LostStretch", "Segment", "SegmentReader", "list_segments", "read_segment"]
