-- tables.sql  the tables of schema version 1; functions.sql is run after it
--
-- The rows are those of the lock table in src/lockfast/core/rows.py. Three of its kinds have no
-- table here: what is due is found by the indexes on deadlines, who watches by an index on
-- sessions, and no step writes a common counter. Count and checksum of a session's claims are
-- computed when they are asked for, so that steps on different locks write different rows.
-- Instants are milliseconds of the server's clock.

CREATE SCHEMA IF NOT EXISTS lockfast;

CREATE TABLE lockfast.meta (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  version integer NOT NULL,
  epoch bigint NOT NULL,        -- a token is epoch + a value of the sequence `tokens`
  timeline text NOT NULL        -- the server's when the epoch was raised last
);

CREATE SEQUENCE lockfast.tokens;
CREATE SEQUENCE lockfast.arrivals;

CREATE TABLE lockfast.sessions (
  namespace text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  ttl_ms bigint NOT NULL,
  owner text NOT NULL,
  metadata text NOT NULL,
  inbox text NOT NULL,
  process text NOT NULL,
  opened_ms bigint NOT NULL,
  deadline_ms bigint NOT NULL,
  renewals bigint NOT NULL,
  lowest bigint NOT NULL,       -- every claim number below it is finished
  watching boolean NOT NULL,
  ended text NOT NULL,
  by text NOT NULL,
  ending text NOT NULL,
  PRIMARY KEY (namespace, id)
) WITH (fillfactor = 70);
CREATE INDEX sessions_due ON lockfast.sessions (namespace, deadline_ms);
CREATE INDEX sessions_watching ON lockfast.sessions (namespace, id) WHERE watching;

CREATE TABLE lockfast.claims (
  namespace text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  n bigint NOT NULL,
  places text NOT NULL,         -- JSON: [[kind, name, mode, weight, limit], …]
  state text NOT NULL,          -- holding, waiting, revoked; finished: only the number is left
  rank text COLLATE "C" NOT NULL,
  actor text NOT NULL,
  priority integer NOT NULL,
  entered_ms bigint NOT NULL,
  token bigint NOT NULL,
  granted_ms bigint NOT NULL,
  until_ms bigint NOT NULL,
  max_hold_ms bigint NOT NULL,
  lock_delay_ms bigint NOT NULL,
  block bigint NOT NULL,
  value text,
  passed numeric NOT NULL,
  step bigint NOT NULL,
  wants text NOT NULL,
  reason text NOT NULL,
  by text NOT NULL,
  window_ms bigint NOT NULL,
  due_ms bigint NOT NULL,       -- until_ms while it holds, else 0
  PRIMARY KEY (namespace, session, n)
) WITH (fillfactor = 60);
CREATE INDEX claims_due ON lockfast.claims (namespace, due_ms) WHERE due_ms > 0;

CREATE TABLE lockfast.resources (
  namespace text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  held text NOT NULL,           -- JSON: {mode: count}
  reserved text NOT NULL,
  holders bigint NOT NULL,
  waiting bigint NOT NULL,
  reservations bigint NOT NULL,
  sole text NOT NULL,           -- rank, session and number of the only holder
  converting text NOT NULL,
  size bigint NOT NULL,         -- of a semaphore
  closed_ms bigint NOT NULL,
  retained bigint NOT NULL,
  PRIMARY KEY (namespace, kind, name)
) WITH (fillfactor = 70);
CREATE INDEX resources_due ON lockfast.resources (namespace, closed_ms) WHERE closed_ms > 0;

-- The line of each resource: h holders when there are several, v reservations, w waiting.
CREATE TABLE lockfast.lines (
  namespace text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  line text COLLATE "C" NOT NULL,
  rank text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  n bigint NOT NULL,
  PRIMARY KEY (namespace, kind, name, line, rank)
);

-- The log of events is written while somebody reads it.
CREATE TABLE lockfast.logs (
  namespace text COLLATE "C" PRIMARY KEY,
  position bigint NOT NULL,
  until_ms bigint NOT NULL,
  watchers bigint NOT NULL
);
CREATE TABLE lockfast.events (
  namespace text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  event text NOT NULL,
  PRIMARY KEY (namespace, position)
);
