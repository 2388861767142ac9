-- Written by `python -m rayjobs.store.tables`; a test compares both.

CREATE TABLE allocations (
	serial INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	target TEXT NOT NULL,
	shape TEXT NOT NULL,
	state TEXT NOT NULL,
	job TEXT,
	attempt INTEGER,
	nodes TEXT NOT NULL,
	gpus TEXT NOT NULL,
	changed_at TEXT NOT NULL,
	CONSTRAINT uq_allocations_name UNIQUE (name)
);

CREATE INDEX ix_allocations_target_state ON allocations (target, state);

CREATE TABLE attempts (
	job TEXT NOT NULL,
	number INTEGER NOT NULL,
	allocation TEXT,
	created_at TEXT NOT NULL,
	started_at TEXT,
	ended_at TEXT,
	hosts TEXT NOT NULL,
	exits TEXT NOT NULL,
	cold_reason TEXT,
	outcome TEXT NOT NULL,
	failure TEXT,
	PRIMARY KEY (job, number)
);

CREATE TABLE datasets (
	name TEXT NOT NULL,
	version INTEGER NOT NULL,
	id TEXT NOT NULL,
	kind TEXT NOT NULL,
	definition TEXT NOT NULL,
	manifest TEXT NOT NULL,
	description TEXT NOT NULL,
	tags TEXT NOT NULL,
	created_at TEXT NOT NULL,
	removed_at TEXT,
	PRIMARY KEY (name, version),
	CONSTRAINT uq_datasets_id UNIQUE (id)
);

CREATE TABLE datastores (
	name TEXT NOT NULL,
	kind TEXT NOT NULL,
	settings TEXT NOT NULL,
	PRIMARY KEY (name)
);

CREATE TABLE environment_labels (
	name TEXT NOT NULL,
	label TEXT NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (name, label)
);

CREATE TABLE environments (
	name TEXT NOT NULL,
	version INTEGER NOT NULL,
	definition TEXT NOT NULL,
	digest TEXT NOT NULL,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	PRIMARY KEY (name, version)
);

CREATE TABLE events (
	serial INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	job TEXT NOT NULL,
	at TEXT NOT NULL,
	kind TEXT NOT NULL,
	message TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	data TEXT NOT NULL
);

CREATE INDEX ix_events_job ON events (job, serial);

CREATE TABLE files (
	job TEXT NOT NULL,
	name TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	size BIGINT NOT NULL,
	digest TEXT NOT NULL,
	blob TEXT NOT NULL,
	stored_at TEXT NOT NULL,
	PRIMARY KEY (job, name)
);

CREATE TABLE jobs (
	serial INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	idempotency_key TEXT,
	experiment TEXT NOT NULL,
	name TEXT NOT NULL,
	display_name TEXT,
	kind TEXT NOT NULL,
	parent TEXT,
	target TEXT NOT NULL,
	submitted_by TEXT NOT NULL,
	snapshot TEXT,
	spec TEXT NOT NULL,
	state TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	reason TEXT NOT NULL,
	priority INTEGER NOT NULL,
	submitted_at TEXT NOT NULL,
	changed_at TEXT NOT NULL,
	started_at TEXT,
	ended_at TEXT,
	not_before TEXT,
	cancel_requested_at TEXT,
	failure TEXT,
	tags TEXT NOT NULL,
	properties TEXT NOT NULL,
	tail TEXT DEFAULT '' NOT NULL,
	entry TEXT DEFAULT '' NOT NULL,
	array_index INTEGER,
	placed_at TEXT,
	hold TEXT,
	description TEXT DEFAULT '' NOT NULL,
	cancellation TEXT,
	CONSTRAINT uq_jobs_id UNIQUE (id),
	CONSTRAINT uq_jobs_idempotency_key UNIQUE (idempotency_key)
);

CREATE INDEX ix_jobs_display_name ON jobs (display_name);

CREATE INDEX ix_jobs_experiment ON jobs (experiment);

CREATE INDEX ix_jobs_history ON jobs (experiment, entry, state, ended_at);

CREATE INDEX ix_jobs_name ON jobs (name);

CREATE INDEX ix_jobs_parent_state ON jobs (parent, state);

CREATE INDEX ix_jobs_tail ON jobs (tail);

CREATE INDEX ix_jobs_target_state ON jobs (target, state);

CREATE TABLE last_metrics (
	name TEXT NOT NULL,
	job_serial INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	rank INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (name, job_serial)
)
 WITHOUT ROWID;

CREATE INDEX ix_last_metrics_job ON last_metrics (job_serial);

CREATE TABLE manifests (
	digest TEXT NOT NULL,
	content BLOB NOT NULL,
	PRIMARY KEY (digest)
);

CREATE TABLE meta (
	"key" TEXT NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY ("key")
);

CREATE TABLE metrics (
	job_serial INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	rank INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	step INTEGER,
	at TEXT NOT NULL,
	late INTEGER NOT NULL,
	PRIMARY KEY (job_serial, attempt, rank, sequence)
)
 WITHOUT ROWID;

CREATE TABLE model_aliases (
	name TEXT NOT NULL,
	alias TEXT NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (name, alias)
);

CREATE TABLE models (
	name TEXT NOT NULL,
	version INTEGER NOT NULL,
	run TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	path TEXT NOT NULL,
	digest TEXT NOT NULL,
	files TEXT NOT NULL,
	lineage TEXT NOT NULL,
	framework TEXT NOT NULL,
	framework_version TEXT NOT NULL,
	description TEXT NOT NULL,
	tags TEXT NOT NULL,
	properties TEXT NOT NULL,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	deleted_at TEXT,
	PRIMARY KEY (name, version)
);

CREATE INDEX ix_models_run ON models (run);

CREATE TABLE pipeline_endpoints (
	name TEXT NOT NULL,
	version INTEGER NOT NULL,
	id TEXT NOT NULL,
	pipeline TEXT NOT NULL,
	description TEXT NOT NULL,
	is_default INTEGER NOT NULL,
	is_active INTEGER NOT NULL,
	created_at TEXT NOT NULL,
	PRIMARY KEY (name, version)
);

CREATE TABLE pipeline_schedules (
	serial INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	description TEXT NOT NULL,
	pipeline TEXT,
	endpoint TEXT,
	experiment TEXT NOT NULL,
	parameters TEXT NOT NULL,
	continues INTEGER,
	recurrence TEXT,
	watched TEXT,
	seen TEXT,
	is_active INTEGER NOT NULL,
	next_at TEXT,
	last_run TEXT,
	note TEXT NOT NULL,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	failed_start TEXT DEFAULT '' NOT NULL,
	CONSTRAINT uq_pipeline_schedules_id UNIQUE (id)
);

CREATE TABLE pipelines (
	job TEXT NOT NULL,
	spec TEXT NOT NULL,
	parameters TEXT NOT NULL,
	continues INTEGER NOT NULL,
	published TEXT,
	PRIMARY KEY (job)
);

CREATE TABLE predictions (
	job TEXT NOT NULL,
	first_at TEXT NOT NULL,
	first_starts_at TEXT NOT NULL,
	first_basis TEXT NOT NULL,
	last_at TEXT NOT NULL,
	last_starts_at TEXT NOT NULL,
	last_basis TEXT NOT NULL,
	PRIMARY KEY (job)
);

CREATE TABLE published_pipelines (
	serial INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	version TEXT,
	description TEXT NOT NULL,
	spec TEXT NOT NULL,
	is_active INTEGER NOT NULL,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	CONSTRAINT uq_published_pipelines_id UNIQUE (id)
);

CREATE TABLE steps (
	pipeline TEXT NOT NULL,
	number INTEGER NOT NULL,
	name TEXT NOT NULL,
	pipeline_name TEXT NOT NULL,
	job TEXT NOT NULL,
	"after" TEXT NOT NULL,
	reuse_key TEXT,
	parts TEXT NOT NULL,
	original TEXT,
	decision TEXT NOT NULL,
	PRIMARY KEY (pipeline, number),
	CONSTRAINT uq_steps_job UNIQUE (job)
);

CREATE INDEX ix_steps_name ON steps (pipeline_name, name);

CREATE INDEX ix_steps_reuse_key ON steps (reuse_key);

CREATE TABLE sweeps (
	job TEXT NOT NULL,
	driver TEXT NOT NULL,
	spec TEXT NOT NULL,
	PRIMARY KEY (job)
);

CREATE TABLE targets (
	name TEXT NOT NULL,
	number INTEGER NOT NULL,
	epoch TEXT NOT NULL,
	claimed_at TEXT NOT NULL,
	PRIMARY KEY (name)
);

CREATE TABLE trials (
	sweep TEXT NOT NULL,
	number INTEGER NOT NULL,
	job TEXT,
	state TEXT NOT NULL,
	parameters TEXT NOT NULL,
	reports TEXT NOT NULL,
	reason TEXT NOT NULL,
	judged INTEGER NOT NULL,
	stop_requested INTEGER NOT NULL,
	metric_names TEXT NOT NULL,
	started_at TEXT,
	ended_at TEXT,
	cause TEXT,
	detail TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (sweep, number)
);

CREATE TABLE writers (
	run TEXT NOT NULL,
	job TEXT,
	attempt INTEGER,
	process TEXT,
	PRIMARY KEY (run)
);

CREATE INDEX ix_writers_job ON writers (job, attempt);

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

INSERT INTO alembic_version (version_num) VALUES ('0015');
