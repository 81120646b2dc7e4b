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

// Files, and what a batch has besides its job. An item gets a row when an engine died with it in flight, and
// when it is recorded: that happens once. A batch whose last item is recorded while its job recovers is done.
constexpr const char* kBatches = R"sql(
INSERT INTO transitions VALUES ('RECOVERING', 'FINALIZING');

CREATE TABLE files (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  project TEXT NOT NULL,
  purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
  filename TEXT NOT NULL,
  bytes INTEGER NOT NULL CHECK (bytes >= 0),
  content TEXT NOT NULL UNIQUE,
  created_us INTEGER NOT NULL,
  epoch INTEGER NOT NULL
);
CREATE INDEX files_by_project ON files (project, id);

CREATE TABLE batches (
  job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  input_file INTEGER NOT NULL,
  completion_window TEXT NOT NULL,
  metadata TEXT NOT NULL CHECK (json_valid(metadata)),
  total INTEGER NOT NULL CHECK (total > 0),
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  progress_attempt INTEGER NOT NULL DEFAULT 0,
  closed INTEGER NOT NULL DEFAULT 0 CHECK (closed IN (0, 1)),
  output_file INTEGER NOT NULL DEFAULT 0,
  error_file INTEGER NOT NULL DEFAULT 0,
  closed_us INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL,
  CHECK (completed + failed <= total)
);
CREATE INDEX batches_open ON batches (job) WHERE closed = 0;
CREATE INDEX batches_open_by_input ON batches (input_file) WHERE closed = 0;

CREATE TABLE batch_items (
  job INTEGER NOT NULL REFERENCES batches (job) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  outcome TEXT NOT NULL DEFAULT '' CHECK (outcome IN ('', 'completed', 'failed')),
  deaths INTEGER NOT NULL DEFAULT 0,
  death_attempt INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL,
  line TEXT NOT NULL DEFAULT '',
  at_us INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  UNIQUE (job, number),
  UNIQUE (job, custom_id)
);

CREATE TRIGGER files_insert BEFORE INSERT ON files WHEN NEW.epoch <> (SELECT epoch FROM writer) BEGIN
  SELECT RAISE(ABORT, 'fenced: another coordinator owns the store');
END;
CREATE TRIGGER files_update BEFORE UPDATE ON files BEGIN
  SELECT RAISE(ABORT, 'terminal: files do not change');
END;
CREATE TRIGGER files_delete BEFORE DELETE ON files
WHEN EXISTS (SELECT 1 FROM batches WHERE input_file = OLD.id AND closed = 0) BEGIN
  SELECT RAISE(ABORT, 'transition: a batch that has not ended reads the file');
END;

CREATE TRIGGER batches_insert BEFORE INSERT ON batches BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN NOT EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job AND kind = 'batch_inference' AND version = 1)
      THEN RAISE(ABORT, 'transition: a batch begins with its job')
    WHEN NOT EXISTS (SELECT 1 FROM files WHERE id = NEW.input_file AND purpose = 'batch')
      THEN RAISE(ABORT, 'transition: the batch has no input file')
  END;
END;
CREATE TRIGGER batches_update BEFORE UPDATE ON batches BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN OLD.closed = 1 THEN RAISE(ABORT, 'terminal: the batch is closed')
    WHEN NEW.job <> OLD.job OR NEW.input_file <> OLD.input_file OR NEW.total <> OLD.total
      THEN RAISE(ABORT, 'transition: what a batch is does not change')
    WHEN NEW.closed = 1 AND (SELECT state FROM jobs WHERE id = OLD.job) NOT IN (SELECT state FROM terminal_states)
      THEN RAISE(ABORT, 'transition: the job has not ended')
  END;
END;
CREATE TRIGGER batches_delete BEFORE DELETE ON batches WHEN OLD.closed = 0 BEGIN
  SELECT RAISE(ABORT, 'transition: the batch is not closed');
END;

CREATE TRIGGER batch_items_insert BEFORE INSERT ON batch_items BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job AND (state = 'FINALIZING' OR state IN terminal_states))
      THEN RAISE(ABORT, 'transition: the results are being written, or are')
    WHEN NEW.attempt > (SELECT attempt FROM jobs WHERE id = NEW.job)
      THEN RAISE(ABORT, 'transition: no such attempt')
  END;
END;
CREATE TRIGGER batch_items_update BEFORE UPDATE ON batch_items BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN OLD.outcome <> '' THEN RAISE(ABORT, 'terminal: the item is recorded')
    WHEN NEW.job <> OLD.job OR NEW.number <> OLD.number OR NEW.custom_id <> OLD.custom_id
      THEN RAISE(ABORT, 'transition: what an item is does not change')
  END;
END;
CREATE TRIGGER batch_items_delete BEFORE DELETE ON batch_items
WHEN EXISTS (SELECT 1 FROM batches WHERE job = OLD.job AND closed = 0) BEGIN
  SELECT RAISE(ABORT, 'terminal: items of a batch that is not closed stay');
END;
)sql";

// Finding what ended long ago, and removing it.
constexpr const char* kRetention = R"sql(
CREATE INDEX jobs_by_end ON jobs (updated_us) WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED');
CREATE INDEX idempotency_by_job ON idempotency (job);
)sql";

// Jobs that take items of a batch besides its own, and which of all an item died with last (0: its own).
constexpr const char* kBatchReplicas = R"sql(
CREATE TABLE batch_replicas (
  job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  batch INTEGER NOT NULL,
  progress_attempt INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL
);
CREATE INDEX batch_replicas_by_batch ON batch_replicas (batch);
ALTER TABLE batch_items ADD COLUMN death_replica INTEGER NOT NULL DEFAULT 0;

CREATE TRIGGER batch_replicas_insert BEFORE INSERT ON batch_replicas BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN NOT EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job AND kind = 'serve' AND version = 1)
      OR NOT EXISTS (SELECT 1 FROM batches WHERE job = NEW.batch AND closed = 0)
      THEN RAISE(ABORT, 'transition: a replica of a batch begins with its job')
  END;
END;
CREATE TRIGGER batch_replicas_update BEFORE UPDATE ON batch_replicas BEGIN
  SELECT CASE
    WHEN NEW.epoch <> (SELECT epoch FROM writer) THEN RAISE(ABORT, 'fenced: another coordinator owns the store')
    WHEN NEW.job <> OLD.job OR NEW.batch <> OLD.batch
      THEN RAISE(ABORT, 'transition: what a replica of a batch is does not change')
  END;
END;
)sql";

// The project of what waits, where its turn is found: those over their quota are passed over.
constexpr const char* kQuotas = R"sql(
DROP INDEX jobs_by_turn;
CREATE INDEX jobs_by_turn ON jobs (state, created_us - priority * 600000000, id, project);
)sql";

// Finding what holds slots.
constexpr const char* kHeldSlots = R"sql(
CREATE INDEX attempts_open ON attempts (job) WHERE state <> 'ended';
)sql";

// Which slots an attempt has: no two that have not ended share one. Those that were begun without numbers get
// the first ones.
constexpr const char* kSlotNumbers = R"sql(
ALTER TABLE attempts ADD COLUMN slot_numbers TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(slot_numbers));
UPDATE attempts SET epoch = (SELECT epoch FROM writer), slot_numbers = (
  WITH RECURSIVE numbers (number, count) AS (
    SELECT coalesce(sum(slots), 0), 1 FROM attempts AS former
    WHERE former.state <> 'ended' AND former.job < attempts.job
    UNION ALL SELECT number + 1, count + 1 FROM numbers WHERE count < attempts.slots)
  SELECT json_group_array(number) FROM numbers)
WHERE state <> 'ended';

CREATE TRIGGER attempts_slots_insert BEFORE INSERT ON attempts
WHEN EXISTS (SELECT 1 FROM attempts AS other, json_each(other.slot_numbers) AS held,
               json_each(NEW.slot_numbers) AS wanted
             WHERE other.state <> 'ended' AND held.value = wanted.value) BEGIN
  SELECT RAISE(ABORT, 'transition: another attempt holds the slot');
END;
CREATE TRIGGER attempts_slots_update BEFORE UPDATE ON attempts WHEN NEW.slot_numbers <> OLD.slot_numbers BEGIN
  SELECT RAISE(ABORT, 'transition: what an attempt is does not change');
END;
)sql";

constexpr const char* kMigrations[] = {
    kJobs, kTurns, kBatches, kRetention, kBatchReplicas, kQuotas, kHeldSlots, kSlotNumbers};

}  // namespace

std::span<const char* const> sqlite_migrations() { return kMigrations; }

}  // namespace llm_dist::cluster
