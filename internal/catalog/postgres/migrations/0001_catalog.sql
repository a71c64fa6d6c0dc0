-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

CREATE TABLE warehouses (
    id   UUID PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

-- path: levels joined by 0x1F. parent is parent_path, or NULL at the top, for
-- the foreign key; parent_path and name serve listings.
CREATE TABLE namespaces (
    warehouse   UUID NOT NULL REFERENCES warehouses (id),
    path        TEXT COLLATE "C" NOT NULL,
    parent      TEXT COLLATE "C",
    parent_path TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    properties  TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (warehouse, path),
    FOREIGN KEY (warehouse, parent) REFERENCES namespaces (warehouse, path)
);
CREATE UNIQUE INDEX namespaces_children ON namespaces (warehouse, parent_path, name);
CREATE INDEX namespaces_parent ON namespaces (warehouse, parent) WHERE parent IS NOT NULL;

-- class: 1 for tables and views, which share a name space, 2 for functions.
CREATE TABLE objects (
    id                UUID PRIMARY KEY,
    warehouse         UUID NOT NULL,
    class             BIGINT NOT NULL,
    kind              BIGINT NOT NULL,
    namespace         TEXT COLLATE "C" NOT NULL,
    name              TEXT COLLATE "C" NOT NULL,
    uuid              UUID NOT NULL,
    location          TEXT COLLATE "C" NOT NULL,
    metadata_location TEXT COLLATE "C" NOT NULL,
    metadata          TEXT,
    labels            TEXT,
    version           BIGINT NOT NULL,
    protected         BOOLEAN NOT NULL,
    purge             BOOLEAN NOT NULL,
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    dropped_at        BIGINT,
    expires_at        BIGINT,
    FOREIGN KEY (warehouse, namespace) REFERENCES namespaces (warehouse, path)
);
CREATE UNIQUE INDEX objects_live ON objects (warehouse, class, namespace, name) WHERE dropped_at IS NULL;
CREATE INDEX objects_listed ON objects (warehouse, kind, namespace, name) WHERE dropped_at IS NULL;
CREATE INDEX objects_namespace ON objects (warehouse, namespace);
CREATE INDEX objects_dropped ON objects (warehouse, id) WHERE dropped_at IS NOT NULL;
CREATE INDEX objects_expired ON objects (expires_at) WHERE expires_at IS NOT NULL;

-- Every place where files of an object may lie, without trailing slash. A
-- reservation can outlive its object, until the purge is done.
CREATE TABLE locations (
    warehouse UUID NOT NULL,
    location  TEXT COLLATE "C" NOT NULL,
    object    UUID NOT NULL,
    position  BIGINT NOT NULL,
    PRIMARY KEY (warehouse, location)
);
CREATE INDEX locations_object ON locations (object);

CREATE TABLE idempotency (
    warehouse    UUID NOT NULL,
    principal    TEXT COLLATE "C" NOT NULL,
    key          UUID NOT NULL,
    operation    TEXT COLLATE "C" NOT NULL,
    request_hash BYTEA NOT NULL,
    response     TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    PRIMARY KEY (warehouse, principal, key)
);
CREATE INDEX idempotency_expired ON idempotency (expires_at);

-- seq is the public number, given when the event is first read.
CREATE TABLE events (
    id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq       BIGINT,
    warehouse UUID NOT NULL,
    at        BIGINT NOT NULL,
    type      TEXT COLLATE "C" NOT NULL,
    object    UUID NOT NULL,
    namespace TEXT COLLATE "C" NOT NULL,
    name      TEXT COLLATE "C" NOT NULL,
    payload   TEXT NOT NULL
);
CREATE UNIQUE INDEX events_seq ON events (warehouse, seq) WHERE seq IS NOT NULL;
CREATE INDEX events_fresh ON events (id) WHERE seq IS NULL;
CREATE INDEX events_at ON events (at);

CREATE TABLE counters (
    name  TEXT COLLATE "C" PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES ('events', 0);

CREATE TABLE audit (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    warehouse  UUID NOT NULL,
    at         BIGINT NOT NULL,
    request_id TEXT COLLATE "C" NOT NULL,
    principal  TEXT COLLATE "C" NOT NULL,
    operation  TEXT COLLATE "C" NOT NULL,
    resource   TEXT COLLATE "C" NOT NULL,
    detail     TEXT NOT NULL
);
CREATE INDEX audit_warehouse ON audit (warehouse, id);

CREATE TABLE purges (
    id                BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    warehouse         UUID NOT NULL,
    object            UUID NOT NULL,
    locations         TEXT NOT NULL,
    metadata_location TEXT COLLATE "C" NOT NULL,
    attempts          BIGINT NOT NULL,
    not_before        BIGINT NOT NULL,
    created_at        BIGINT NOT NULL
);
CREATE INDEX purges_due ON purges (not_before, id);

CREATE TABLE metrics_reports (
    id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    warehouse UUID NOT NULL,
    object    UUID NOT NULL,
    at        BIGINT NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    type      TEXT COLLATE "C" NOT NULL,
    report    TEXT NOT NULL
);
CREATE INDEX metrics_reports_object ON metrics_reports (warehouse, object, id);
CREATE INDEX metrics_reports_at ON metrics_reports (at);
