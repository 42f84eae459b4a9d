"""The statements of a journal, which SQLite and PostgreSQL take alike; ``store.schema`` describes the
tables. ``:journal`` is the journal's id in them.
"""

from __future__ import annotations

#: Changes of the journal's row by its writer, if the writer's epoch may still write.
ADVANCE = (
    "UPDATE schedulemesh_journals SET last = :number "
    "WHERE id = :journal AND epoch = :epoch AND last = :previous"
)
GO_BACK = (
    "UPDATE schedulemesh_journals SET last = :number "
    "WHERE id = :journal AND epoch = :epoch AND last >= :number"
)
COMPACT = (
    "UPDATE schedulemesh_journals SET base = :upto, parts = :parts "
    "WHERE id = :journal AND epoch = :epoch AND last >= :upto"
)
#: Changes nothing, and shows that this epoch may still write.
STAY = "UPDATE schedulemesh_journals SET epoch = :epoch WHERE id = :journal AND epoch = :epoch"

RAISE_EPOCH = (
    "UPDATE schedulemesh_journals "
    "SET epoch = (CASE WHEN epoch > :above THEN epoch ELSE :above END) + 1 WHERE id = :journal"
)
JOURNAL = "SELECT epoch, last, base, parts FROM schedulemesh_journals WHERE id = :journal"
DROP_JOURNAL = "DELETE FROM schedulemesh_journals WHERE id = :journal"

INSERT_COMMIT = (
    "INSERT INTO schedulemesh_commits (journal, number, crc, facts) "
    "VALUES (:journal, :number, :crc, :facts)"
)
COMMITS_AFTER = (
    "SELECT number, crc, facts FROM schedulemesh_commits "
    "WHERE journal = :journal AND number > :number ORDER BY number"
)
DROP_COMMITS_UPTO = (
    "DELETE FROM schedulemesh_commits WHERE journal = :journal AND number <= :number"
)
DROP_COMMITS_AFTER = (
    "DELETE FROM schedulemesh_commits WHERE journal = :journal AND number > :number"
)
DROP_COMMITS = "DELETE FROM schedulemesh_commits WHERE journal = :journal"

INSERT_PART = (
    "INSERT INTO schedulemesh_snapshots (journal, number, crc, part) "
    "VALUES (:journal, :number, :crc, :part)"
)
PARTS = (
    "SELECT number, crc, part FROM schedulemesh_snapshots WHERE journal = :journal ORDER BY number"
)
DROP_PARTS = "DELETE FROM schedulemesh_snapshots WHERE journal = :journal"

INSERT_BLOB = (
    'INSERT INTO schedulemesh_blobs (journal, "key", number, crc, data) '
    "VALUES (:journal, :key, :number, :crc, :data)"
)
BLOB = 'SELECT data FROM schedulemesh_blobs WHERE journal = :journal AND "key" = :key'
BLOB_NUMBER = 'SELECT number FROM schedulemesh_blobs WHERE journal = :journal AND "key" = :key'
BLOB_SIZES = 'SELECT "key", length(data) FROM schedulemesh_blobs WHERE journal = :journal'
BLOB_SIZE = f'{BLOB_SIZES} AND "key" = :key'
BLOBS_UPTO = (
    'SELECT "key" FROM schedulemesh_blobs WHERE journal = :journal AND number <= :number '
    'AND "key" > :after ORDER BY "key" LIMIT :limit'
)
RENEW_BLOB = (
    'UPDATE schedulemesh_blobs SET number = :number WHERE journal = :journal AND "key" = :key'
)
DROP_BLOB = 'DELETE FROM schedulemesh_blobs WHERE journal = :journal AND "key" = :key'
DROP_BLOB_UPTO = (
    'DELETE FROM schedulemesh_blobs WHERE journal = :journal AND "key" = :key AND number <= :number'
)
DROP_BLOBS = "DELETE FROM schedulemesh_blobs WHERE journal = :journal"

NOTE = "SELECT data, crc FROM schedulemesh_notes WHERE journal = :journal AND name = :name"
INSERT_NOTE = (
    "INSERT INTO schedulemesh_notes (journal, name, crc, data) "
    "VALUES (:journal, :name, :crc, :data)"
)
DROP_NOTE = "DELETE FROM schedulemesh_notes WHERE journal = :journal AND name = :name"
DROP_NOTES = "DELETE FROM schedulemesh_notes WHERE journal = :journal"

#: Those of PostgreSQL alone.
TRY_LOCK = "SELECT pg_try_advisory_lock(:space, :journal)"
LOCK_TABLES = "SELECT pg_advisory_xact_lock(:space, 0)"
