ALTER TABLE trials ADD COLUMN cause TEXT COLLATE "C";
UPDATE trials SET cause = CASE
    WHEN state = 'Failed' AND reason LIKE 'trial ' || number || ' never reported the metric %'
        THEN 'no_metric'
    WHEN reason LIKE 'stopped trial ' || number || ' at interval %' THEN 'policy'
    WHEN reason = 'stopped trial ' || number || ': the sweep was canceled' THEN 'sweep_canceled'
    WHEN reason LIKE 'stopped trial ' || number || ': %' THEN 'sweep_ended'
    ELSE 'job'
END
WHERE reason != '';
