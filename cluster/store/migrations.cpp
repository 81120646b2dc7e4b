#include "cluster/store/migrations.h"

namespace llm_dist::cluster {
namespace {

// The database itself refuses what may not happen: each RAISE begins with a word that the store knows.
constexpr const char* kJobs = R"sql(
CREATE TABLE writer (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  epoch INTEGER NOT NULL,
  last_batch TEXT NOT NULL
);
INSERT INTO writer VALUES (1, 0, '');
CREATE TRIGGER writer_update BEFORE UPDATE ON writer WHEN NEW.epoch < OLD.epoch BEGIN
  SELECT RAISE(ABORT, 'fenced: the epoch only grows');
END;
CREATE TRIGGER writer_delete BEFORE DELETE ON writer BEGIN
  SELECT RAISE(ABORT, 'fenced: the epoch stays');
END;

CREATE TABLE transitions (
  from_state TEXT NOT NULL,
  to_state TEXT NOT NULL,
  PRIMARY KEY (from_state, to_state)
) WITHOUT ROWID;
INSERT INTO transitions VALUES
  ('QUEUED', 'STARTING'), ('QUEUED', 'SUSPENDED'), ('QUEUED', 'FAILED'), ('QUEUED', 'CANCELLED'),
  ('QUEUED', 'EXPIRED'), ('STARTING', 'RUNNING'), ('STARTING', 'RECOVERING'), ('STARTING', 'SUSPENDED'),
  ('STARTING', 'FAILED'), ('STARTING', 'CANCELLING'), ('RUNNING', 'RECOVERING'), ('RUNNING', 'FINALIZING'),
  ('RUNNING', 'SUSPENDED'), ('RUNNING', 'FAILED'), ('RUNNING', 'CANCELLING'), ('RECOVERING', 'STARTING'),
  ('RECOVERING', 'SUSPENDED'), ('RECOVERING', 'FAILED'), ('RECOVERING', 'CANCELLING'), ('RECOVERING', 'EXPIRED'),
  ('SUSPENDED', 'QUEUED'), ('SUSPENDED', 'CANCELLED'), ('SUSPENDED', 'EXPIRED'), ('CANCELLING', 'CANCELLED'),
  ('FINALIZING', 'SUCCEEDED'), ('FINALIZING', 'FAILED'), ('FINALIZING', 'EXPIRED');

CREATE TABLE terminal_states (state TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO terminal_states VALUES ('SUCCEEDED'), ('FAILED'), ('CANCELLED'), ('EXPIRED');

CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  project TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('serve', 'batch_inference', 'bench')),
  spec TEXT NOT NULL CHECK (json_valid(spec)),
  priority INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('QUEUED', 'STARTING', 'RUNNING', 'SUSPENDED', 'RECOVERING', 'CANCELLING',
                                       'FINALIZING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')),
  intent TEXT NOT NULL DEFAULT '' CHECK (intent IN ('', 'suspend')),
  reason TEXT NOT NULL DEFAULT '',
  message TEXT NOT NULL DEFAULT '',
  version INTEGER NOT NULL DEFAULT 1,
  attempt INTEGER NOT NULL DEFAULT 0,
  retry_of INTEGER NOT NULL DEFAULT 0,
  created_us INTEGER NOT NULL,
  updated_us INTEGER NOT NULL,
  expires_us INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_project ON jobs (project, id);
CREATE INDEX jobs_by_project_state ON jobs (project, state, id);

CREATE TABLE attempts (
  job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT 'starting' CHECK (state IN ('starting', 'running', 'ended')),
  launcher TEXT NOT NULL,
  handle TEXT NOT NULL DEFAULT '',
  endpoint TEXT NOT NULL DEFAULT '',
  secret_hash TEXT NOT NULL DEFAULT '',
  slots INTEGER NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  exit_code INTEGER NOT NULL DEFAULT 0,
  started_us INTEGER NOT NULL,
  ended_us INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL,
  PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE events (
  job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  from_state TEXT,
  to_state TEXT NOT NULL,
  intent TEXT NOT NULL,
  reason TEXT NOT NULL,
  message TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  at_us INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE idempotency (
  project TEXT NOT NULL,
  key TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  job INTEGER NOT NULL,
  created_us INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  PRIMARY KEY (project, key)
) WITHOUT ROWID;

CREATE TRIGGER jobs_insert BEFORE INSERT ON jobs BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN NEW.state <> 'QUEUED' OR NEW.version <> 1 OR NEW.attempt <> 0
      THEN RAISE(ABORT, 'transition: a job begins QUEUED')
  END;
END;
CREATE TRIGGER jobs_inserted AFTER INSERT ON jobs BEGIN
  INSERT INTO events VALUES (NEW.id, 1, NULL, NEW.state, NEW.intent, NEW.reason, NEW.message, 0, NEW.updated_us,
                             NEW.epoch);
END;
CREATE TRIGGER jobs_update BEFORE UPDATE ON jobs BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN OLD.state IN (SELECT state FROM terminal_states) THEN RAISE(ABORT, 'terminal: the job has ended')
    WHEN NEW.version <> OLD.version + 1 THEN RAISE(ABORT, 'version: versions count one up')
    WHEN NEW.id <> OLD.id OR NEW.project <> OLD.project OR NEW.kind <> OLD.kind OR NEW.spec <> OLD.spec
      OR NEW.retry_of <> OLD.retry_of OR NEW.created_us <> OLD.created_us
      THEN RAISE(ABORT, 'transition: what a job is does not change')
    WHEN NEW.state <> OLD.state
      AND NOT EXISTS (SELECT 1 FROM transitions WHERE from_state = OLD.state AND to_state = NEW.state)
      THEN RAISE(ABORT, 'transition: the job is in a state from which this may not happen')
    WHEN NEW.attempt <> OLD.attempt + (NEW.state = 'STARTING' AND OLD.state <> 'STARTING')
      THEN RAISE(ABORT, 'transition: an attempt begins with STARTING, and only there')
    WHEN NEW.state IN ('QUEUED', 'STARTING', 'SUSPENDED', 'RECOVERING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
      AND NEW.state <> OLD.state
      AND EXISTS (SELECT 1 FROM attempts WHERE job = OLD.id AND state <> 'ended')
      THEN RAISE(ABORT, 'transition: the job still has an attempt that has not ended')
  END;
END;
CREATE TRIGGER jobs_updated AFTER UPDATE ON jobs BEGIN
  INSERT INTO events VALUES (NEW.id, NEW.version, OLD.state, NEW.state, NEW.intent, NEW.reason, NEW.message,
                             NEW.attempt, NEW.updated_us, NEW.epoch);
END;
CREATE TRIGGER jobs_delete BEFORE DELETE ON jobs
WHEN OLD.state NOT IN (SELECT state FROM terminal_states) BEGIN
  SELECT RAISE(ABORT, 'transition: a job that has not ended stays');
END;

CREATE TRIGGER attempts_insert BEFORE INSERT ON attempts BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN NOT EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job AND state = 'STARTING' AND attempt = NEW.number)
      THEN RAISE(ABORT, 'transition: an attempt begins with STARTING, and only there')
  END;
END;
CREATE TRIGGER attempts_update BEFORE UPDATE ON attempts BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN OLD.state = 'ended' THEN RAISE(ABORT, 'terminal: the attempt has ended')
    WHEN OLD.state = 'running' AND NEW.state = 'starting' THEN RAISE(ABORT, 'transition: attempts do not go back')
    WHEN NEW.job <> OLD.job OR NEW.number <> OLD.number OR NEW.started_us <> OLD.started_us
      THEN RAISE(ABORT, 'transition: what an attempt is does not change')
  END;
END;
CREATE TRIGGER events_update BEFORE UPDATE ON events BEGIN
  SELECT RAISE(ABORT, 'terminal: events do not change');
END;
CREATE TRIGGER events_delete BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM jobs WHERE id = OLD.job AND state NOT IN (SELECT state FROM terminal_states)) BEGIN
  SELECT RAISE(ABORT, 'terminal: events of a job that has not ended stay');
END;
CREATE TRIGGER idempotency_insert BEFORE INSERT ON idempotency
WHEN NEW.epoch <> (SELECT epoch FROM writer) BEGIN
  SELECT RAISE(ABORT, 'fenced: another coordinator owns the store');
END;
CREATE TRIGGER idempotency_update BEFORE UPDATE ON idempotency BEGIN
  SELECT RAISE(ABORT, 'terminal: an answer does not change');
END;
)sql";

// Finding what starts next, and what has expired, in a long queue.
constexpr const char* kTurns = R"sql(
CREATE INDEX jobs_by_turn ON jobs (state, created_us - priority * 600000000, id);
CREATE INDEX jobs_by_expiry ON jobs (expires_us) WHERE expires_us > 0 AND state IN ('QUEUED', 'SUSPENDED');
)sql";

constexpr const char* kMigrations[] = {kJobs, kTurns};

}  // namespace

std::span<const char* const> sqlite_migrations() { return kMigrations; }

}  // namespace llm_dist::cluster
