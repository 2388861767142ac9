ALTER TABLE pipeline_schedules ADD COLUMN failed_start TEXT COLLATE "C" DEFAULT '' NOT NULL;
UPDATE pipeline_schedules SET failed_start = substr(note, 14) WHERE note LIKE 'tries again: %';
