ALTER TABLE jobs ADD COLUMN cancellation TEXT COLLATE "C";
ALTER TABLE trials ADD COLUMN detail TEXT COLLATE "C" DEFAULT '' NOT NULL;
WITH requested AS (
    SELECT job, COALESCE(data::json ->> 'by', '') AS person,
        CASE WHEN COALESCE(data::json ->> 'by', '') = '' THEN 'canceled'
            ELSE 'canceled by ' || (data::json ->> 'by') END AS head
    FROM events
    WHERE serial IN (SELECT MAX(serial) FROM events WHERE kind = 'cancel' GROUP BY job)
)
UPDATE jobs
SET cancellation = json_build_object('by', person, 'remarks', substr(reason, length(head) + 3))::text
FROM requested
WHERE requested.job = jobs.id AND state = 'Canceled'
    AND (reason = head OR substr(reason, 1, length(head) + 2) = head || '; ');
UPDATE jobs
SET cancellation = json_build_object('by', substr(reason, 13))::text
WHERE state = 'Canceled' AND (reason = 'canceled' OR reason LIKE 'canceled by %')
    AND NOT EXISTS (SELECT 1 FROM events WHERE job = jobs.id AND kind = 'cancel');
UPDATE trials SET detail = CASE
    WHEN cause = 'policy' AND reason LIKE 'stopped trial ' || number || ' at %'
        THEN substr(reason, length('stopped trial ' || number || ' at ') + 1)
    WHEN cause IN ('sweep_ended', 'sweep_canceled')
        AND reason LIKE 'stopped trial ' || number || ': %'
        THEN substr(reason, length('stopped trial ' || number || ': ') + 1)
    WHEN cause = 'no_metric' AND reason LIKE 'trial ' || number || ' %'
        THEN substr(reason, length('trial ' || number || ' ') + 1)
    ELSE '' END;
