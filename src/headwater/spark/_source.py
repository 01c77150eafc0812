"""`format("headwater")`: the data source as Spark knows it.

It turns options into readers and writers and does nothing else. Made anew in every process that
Spark uses, and pickled between them: it keeps options only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headwater.errors import InvalidInputError
from headwater.spark._options import parse_read_options
from headwater.spark._schema import records_ddl

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headwater.spark._options import ReadOptions


class HeadwaterSource(DataSource):
    """Logs, topics, archives and event logs as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "headwater"

    def schema(self) -> str:
        """The columns, where the user gives none."""
        options = parse_read_options(self._plain(), stream=None)
        if options.kind == "events":
            from headwater.spark._event_lines import events_ddl  # noqa: PLC0415 - as below

            return events_ddl()
        if options.view != "records":
            from headwater.spark._metadata import view_ddl  # noqa: PLC0415 - the same

            return view_ddl(options.view)
        if options.decode == "json":
            raise InvalidInputError("option decode: json needs columns: give them by .schema(...)")
        return records_ddl(headers=options.include_headers, segment=options.include_segment)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        options = self._read_options(stream=False)
        if options.kind == "events":
            from headwater.spark._events import EventBatchReader  # noqa: PLC0415 - if needed

            return EventBatchReader(options, schema)
        if options.view != "records":
            from headwater.spark._metadata import MetadataReader  # noqa: PLC0415 - the same

            return MetadataReader(options, schema)
        from headwater.spark._batch import BatchReader  # noqa: PLC0415 - in the driver only

        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """A streaming read."""
        options = self._read_options(stream=True)
        if options.kind == "events":
            from headwater.spark._event_stream import (  # noqa: PLC0415 - if needed
                EventStreamReader,
            )

            return EventStreamReader(options, schema)
        from headwater.spark._stream import StreamReader  # noqa: PLC0415 - in the driver only

        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """A batch write."""
        from headwater.spark._writer import BatchWriter  # noqa: PLC0415 - in the driver only

        return BatchWriter(self._plain(), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """A streaming write."""
        from headwater.spark._writer import StreamWriter  # noqa: PLC0415 - in the driver only

        return StreamWriter(self._plain(), schema, overwrite)

    def _plain(self) -> dict[str, str]:
        return {str(name): str(text) for name, text in dict(self.options).items()}

    def _read_options(self, *, stream: bool) -> ReadOptions:
        return parse_read_options(self._plain(), stream=stream)
