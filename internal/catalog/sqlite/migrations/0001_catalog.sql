-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

CREATE TABLE warehouses (
    id   TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;

-- path: levels joined by 0x1F. parent is parent_path, or NULL at the top, for
-- the foreign key; parent_path and name serve listings.
CREATE TABLE namespaces (
    warehouse   TEXT NOT NULL REFERENCES warehouses (id),
    path        TEXT NOT NULL,
    parent      TEXT,
    parent_path TEXT NOT NULL,
    name        TEXT NOT NULL,
    properties  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (warehouse, path),
    FOREIGN KEY (warehouse, parent) REFERENCES namespaces (warehouse, path)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX namespaces_children ON namespaces (warehouse, parent_path, name);
CREATE INDEX namespaces_parent ON namespaces (warehouse, parent) WHERE parent IS NOT NULL;

-- class: 1 for tables and views, which share a name space, 2 for functions.
CREATE TABLE objects (
    id                TEXT PRIMARY KEY,
    warehouse         TEXT NOT NULL,
    class             INTEGER NOT NULL,
    kind              INTEGER NOT NULL,
    namespace         TEXT NOT NULL,
    name              TEXT NOT NULL,
    uuid              TEXT NOT NULL,
    location          TEXT NOT NULL,
    metadata_location TEXT NOT NULL,
    metadata          TEXT,
    labels            TEXT,
    version           INTEGER NOT NULL,
    protected         INTEGER NOT NULL,
    purge             INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    dropped_at        INTEGER,
    expires_at        INTEGER,
    FOREIGN KEY (warehouse, namespace) REFERENCES namespaces (warehouse, path)
) STRICT;
CREATE UNIQUE INDEX objects_live ON objects (warehouse, class, namespace, name) WHERE dropped_at IS NULL;
-- dropped_at is in it for its condition, so that listings read the index alone.
CREATE INDEX objects_listed ON objects (warehouse, kind, namespace, name, dropped_at) WHERE dropped_at IS NULL;
CREATE INDEX objects_namespace ON objects (warehouse, namespace);
CREATE INDEX objects_dropped ON objects (warehouse, id) WHERE dropped_at IS NOT NULL;
CREATE INDEX objects_expired ON objects (expires_at) WHERE expires_at IS NOT NULL;

-- Every place where files of an object may lie, without trailing slash. A
-- reservation can outlive its object, until the purge is done.
CREATE TABLE locations (
    warehouse TEXT NOT NULL,
    location  TEXT NOT NULL,
    object    TEXT NOT NULL,
    position  INTEGER NOT NULL,
    PRIMARY KEY (warehouse, location)
) STRICT, WITHOUT ROWID;
CREATE INDEX locations_object ON locations (object);

CREATE TABLE idempotency (
    warehouse    TEXT NOT NULL,
    principal    TEXT NOT NULL,
    key          TEXT NOT NULL,
    operation    TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    response     TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    PRIMARY KEY (warehouse, principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expired ON idempotency (expires_at);

-- seq is the public number, given when the event is first read.
CREATE TABLE events (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    seq       INTEGER,
    warehouse TEXT NOT NULL,
    at        INTEGER NOT NULL,
    type      TEXT NOT NULL,
    object    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    payload   TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_seq ON events (warehouse, seq) WHERE seq IS NOT NULL;
CREATE INDEX events_fresh ON events (id) WHERE seq IS NULL;
CREATE INDEX events_at ON events (at);

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('events', 0);

CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    warehouse  TEXT NOT NULL,
    at         INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    principal  TEXT NOT NULL,
    operation  TEXT NOT NULL,
    resource   TEXT NOT NULL,
    detail     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_warehouse ON audit (warehouse, id);

CREATE TABLE purges (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    warehouse         TEXT NOT NULL,
    object            TEXT NOT NULL,
    locations         TEXT NOT NULL,
    metadata_location TEXT NOT NULL,
    attempts          INTEGER NOT NULL,
    not_before        INTEGER NOT NULL,
    created_at        INTEGER NOT NULL
) STRICT;
CREATE INDEX purges_due ON purges (not_before, id);

CREATE TABLE metrics_reports (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    warehouse TEXT NOT NULL,
    object    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    principal TEXT NOT NULL,
    type      TEXT NOT NULL,
    report    TEXT NOT NULL
) STRICT;
CREATE INDEX metrics_reports_object ON metrics_reports (warehouse, object, id);
CREATE INDEX metrics_reports_at ON metrics_reports (at);
