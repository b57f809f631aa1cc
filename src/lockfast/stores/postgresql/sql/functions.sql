-- functions.sql  what the store calls; run again with every new version
--
-- Locks. Every step takes transaction-level advisory locks, always in this order:
--   gate       shared; exclusive for a step that writes the log or reserves a block of tokens
--   sessions   shared by the steps of a session; exclusive to open, end or watch
--   resources  exclusive, in order of their lock keys
-- A claim is changed only under the locks of all its places, and inserted only under its
-- session's. What is read for a decision is read after these locks were granted: each statement
-- of a function has a snapshot of its own.

CREATE OR REPLACE FUNCTION lockfast.gate_key() RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended('lockfast.gate', 0);

CREATE OR REPLACE FUNCTION lockfast.session_key(p_namespace text, p_session text)
RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended('lockfast.session' || p_namespace || E'\x1f' || p_session, 0);

CREATE OR REPLACE FUNCTION lockfast.resource_key(p_namespace text, p_kind text, p_name text)
RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended(
  'lockfast.resource' || p_namespace || E'\x1f' || p_kind || E'\x1f' || p_name, 0);

-- Held by the step that reaps: the others go on without.
CREATE OR REPLACE FUNCTION lockfast.reaper_key(p_namespace text) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN hashtextextended('lockfast.reaper' || p_namespace, 0);

CREATE OR REPLACE FUNCTION lockfast.timeline() RETURNS text LANGUAGE sql VOLATILE
AS $$ SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) $$;

-- The server's clock, or the given instant: only tests set the clock.
CREATE OR REPLACE FUNCTION lockfast.now_ms(p_given bigint) RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT coalesce(p_given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) $$;

-- Whether something ended by the clock.
CREATE OR REPLACE FUNCTION lockfast.is_due(p_namespace text, p_now_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM lockfast.sessions
      WHERE namespace = p_namespace AND deadline_ms <= p_now_ms)
    OR EXISTS (SELECT 1 FROM lockfast.claims
      WHERE namespace = p_namespace AND due_ms > 0 AND due_ms <= p_now_ms)
    OR EXISTS (SELECT 1 FROM lockfast.resources
      WHERE namespace = p_namespace AND closed_ms > 0 AND closed_ms <= p_now_ms);
END $$;

-- Whether a step must take the general path: it is logged, or reaps first.
CREATE OR REPLACE FUNCTION lockfast.is_logged_or_due(p_namespace text, p_now_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN lockfast.is_due(p_namespace, p_now_ms)
    OR EXISTS (SELECT 1 FROM lockfast.logs
      WHERE namespace = p_namespace AND (watchers > 0 OR until_ms > p_now_ms));
END $$;

-- Keep the log for a while from now; one that was not written begins anew, behind a gap.
CREATE OR REPLACE FUNCTION lockfast.keep_log(p_namespace text, p_kept_ms bigint, p_now_ms bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint;
BEGIN
  -- From here on every step that was not logged has committed.
  PERFORM pg_advisory_xact_lock(lockfast.gate_key());
  v_now_ms := lockfast.now_ms(p_now_ms);
  IF EXISTS (SELECT 1 FROM lockfast.logs
      WHERE namespace = p_namespace AND watchers = 0 AND until_ms <= v_now_ms) THEN
    DELETE FROM lockfast.events WHERE namespace = p_namespace;
    UPDATE lockfast.logs SET position = position + 1 WHERE namespace = p_namespace;
  END IF;
  INSERT INTO lockfast.logs VALUES (p_namespace, 0, v_now_ms + p_kept_ms, 0)
    ON CONFLICT (namespace) DO UPDATE SET until_ms = excluded.until_ms;
END $$;

-- What is due: sessions, claims past their max_hold, closed resources; some of each.
CREATE OR REPLACE FUNCTION lockfast.due(p_namespace text, p_now_ms bigint, p_most integer)
RETURNS TABLE (due_session text, due_n bigint, due_kind text, due_name text)
LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint := lockfast.now_ms(p_now_ms);
BEGIN
  RETURN QUERY
    (SELECT s.id, 0::bigint, ''::text, ''::text FROM lockfast.sessions s
      WHERE s.namespace = p_namespace AND s.deadline_ms <= v_now_ms
      ORDER BY s.deadline_ms LIMIT p_most)
    UNION ALL
    (SELECT c.session, c.n, '', '' FROM lockfast.claims c
      WHERE c.namespace = p_namespace AND c.due_ms > 0 AND c.due_ms <= v_now_ms
      ORDER BY c.due_ms LIMIT p_most)
    UNION ALL
    (SELECT '', 0, r.kind, r.name FROM lockfast.resources r
      WHERE r.namespace = p_namespace AND r.closed_ms > 0 AND r.closed_ms <= v_now_ms
      ORDER BY r.closed_ms LIMIT p_most);
END $$;

-- A token; of a block, the first. Only a step that has the gate to itself may draw a block.
-- A commit that hands out a token waits for the disk, whatever the server's default is.
CREATE OR REPLACE FUNCTION lockfast.draw_token(p_block bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_epoch bigint;
  v_first bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  SELECT epoch INTO STRICT v_epoch FROM lockfast.meta;
  v_first := nextval('lockfast.tokens');
  IF p_block > 1 THEN
    PERFORM setval('lockfast.tokens', v_first + p_block - 1);
  END IF;
  RETURN v_epoch + v_first;
END $$;

-- Raise the epoch so that the next token is not below the wall clock; see ARCHITECTURE.md.
CREATE OR REPLACE FUNCTION lockfast.raise_epoch(p_wall_us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_wall_us bigint :=
    coalesce(p_wall_us, floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
  v_last bigint;
  v_epoch bigint;
BEGIN
  SELECT last_value INTO v_last FROM lockfast.tokens;
  UPDATE lockfast.meta
    SET epoch = greatest(epoch, v_wall_us - v_last), timeline = lockfast.timeline()
    RETURNING epoch INTO v_epoch;
  RETURN v_epoch;
END $$;

-- Rows as `key, value`: keys are those of core/rows.py, values JSON lists of the columns.
CREATE OR REPLACE FUNCTION lockfast.claim_row(c lockfast.claims) RETURNS json
LANGUAGE sql IMMUTABLE
RETURN json_build_array(c.session, c.n, c.places, c.state, c.rank, c.actor, c.priority,
  c.entered_ms, c.token, c.granted_ms, c.until_ms, c.max_hold_ms, c.lock_delay_ms, c.block,
  c.value, c.passed, c.step, c.wants, c.reason, c.by, c.window_ms);

CREATE OR REPLACE FUNCTION lockfast.session_row(s lockfast.sessions) RETURNS json
LANGUAGE sql IMMUTABLE
RETURN json_build_array(s.id, s.ttl_ms, s.owner, s.metadata, s.inbox, s.process, s.opened_ms,
  s.deadline_ms, s.renewals, s.lowest, s.watching, s.ended, s.by, s.ending);

CREATE OR REPLACE FUNCTION lockfast.resource_row(r lockfast.resources) RETURNS json
LANGUAGE sql IMMUTABLE
RETURN json_build_array(r.kind, r.name, r.held, r.reserved, r.holders, r.waiting,
  r.reservations, r.sole, r.converting, r.size, r.closed_ms, r.retained);

-- The given claims and sessions, with the sessions of these claims.
CREATE OR REPLACE FUNCTION lockfast.load_claims(p_namespace text, p_claims json, p_sessions json)
RETURNS TABLE (key text, value json) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY
  WITH wanted AS (
    SELECT x ->> 0 AS session, (x ->> 1)::bigint AS n FROM json_array_elements(p_claims) x
  ), found AS (
    SELECT c.* FROM wanted w JOIN lockfast.claims c
      ON c.namespace = p_namespace AND c.session = w.session AND c.n = w.n
  )
  SELECT 'c' || E'\x1f' || f.session || E'\x1f' || lpad(to_hex(f.n), 16, '0'),
    lockfast.claim_row(f::lockfast.claims) FROM found f
  UNION ALL
  SELECT 's' || E'\x1f' || s.id, lockfast.session_row(s) FROM (
    SELECT w.session FROM wanted w
    UNION SELECT x #>> '{}' FROM json_array_elements(p_sessions) x
  ) i JOIN lockfast.sessions s ON s.namespace = p_namespace AND s.id = i.session;
END $$;

-- A part of a line, in order, with its claims and their sessions.
CREATE OR REPLACE FUNCTION lockfast.load_line(
  p_namespace text, p_kind text, p_name text, p_line text, p_after text, p_most bigint)
RETURNS TABLE (key text, value json) LANGUAGE plpgsql AS $$
DECLARE
  v_claims json;
BEGIN
  RETURN QUERY
  SELECT 'l' || E'\x1f' || l.rank, json_build_array(l.session, l.n) FROM lockfast.lines l
    WHERE l.namespace = p_namespace AND l.kind = p_kind AND l.name = p_name
      AND l.line = p_line AND l.rank > p_after
    ORDER BY l.rank LIMIT p_most;
  SELECT json_agg(json_build_array(x.session, x.n)) INTO v_claims FROM (
    SELECT l.session, l.n FROM lockfast.lines l
    WHERE l.namespace = p_namespace AND l.kind = p_kind AND l.name = p_name
      AND l.line = p_line AND l.rank > p_after
    ORDER BY l.rank LIMIT p_most) x;
  RETURN QUERY SELECT * FROM lockfast.load_claims(p_namespace, coalesce(v_claims, '[]'), '[]');
END $$;

-- The clock, whether something is due, and the state of the log; the given resources with the
-- heads of their lines, the claims named there, the given claims, and the sessions of all of
-- these. With `p_places` also the resources of the given claims.
CREATE OR REPLACE FUNCTION lockfast.load(
  p_namespace text, p_sessions json, p_resources json, p_claims json, p_places boolean,
  p_now_ms bigint)
RETURNS TABLE (key text, value json) LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint := lockfast.now_ms(p_now_ms);
BEGIN
  RETURN QUERY
  SELECT 'clock'::text, json_build_array(
    v_now_ms, floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    lockfast.is_due(p_namespace, v_now_ms), l.position, l.until_ms, l.watchers)
  FROM (SELECT 1) one LEFT JOIN lockfast.logs l ON l.namespace = p_namespace;
  RETURN QUERY
  WITH wanted AS (
    SELECT x ->> 0 AS kind, x ->> 1 AS name FROM json_array_elements(p_resources) x
    UNION
    SELECT p ->> 0, p ->> 1 FROM json_array_elements(p_claims) x
      JOIN lockfast.claims c ON p_places AND c.namespace = p_namespace
        AND c.session = x ->> 0 AND c.n = (x ->> 1)::bigint
      CROSS JOIN LATERAL json_array_elements(c.places::json) p
  ), found AS (
    SELECT r.* FROM wanted w JOIN lockfast.resources r
      ON r.namespace = p_namespace AND r.kind = w.kind AND r.name = w.name
  ), heads AS (
    SELECT h.* FROM found f
    CROSS JOIN (VALUES ('w', 3), ('h', 17), ('v', 17)) AS part (line, most)
    CROSS JOIN LATERAL (
      SELECT l.* FROM lockfast.lines l
      WHERE l.namespace = p_namespace AND l.kind = f.kind AND l.name = f.name
        AND l.line = part.line
      ORDER BY l.rank LIMIT part.most) h
  ), refs AS (
    SELECT h.session, h.n FROM heads h
    UNION SELECT split_part(f.sole, E'\x1f', 2), split_part(f.sole, E'\x1f', 3)::bigint
      FROM found f WHERE f.sole <> ''
    UNION SELECT split_part(f.converting, E'\x1f', 1), split_part(f.converting, E'\x1f', 2)::bigint
      FROM found f WHERE f.converting <> ''
    UNION SELECT x ->> 0, (x ->> 1)::bigint FROM json_array_elements(p_claims) x
  )
  SELECT 'r' || E'\x1f' || f.kind || E'\x1f' || f.name,
    lockfast.resource_row(f::lockfast.resources) FROM found f
  UNION ALL
  SELECT h.line || E'\x1f' || h.kind || E'\x1f' || h.name || E'\x1f' || h.rank,
    json_build_array(h.session, h.n) FROM heads h
  UNION ALL
  SELECT 'c' || E'\x1f' || c.session || E'\x1f' || lpad(to_hex(c.n), 16, '0'),
    lockfast.claim_row(c) FROM refs JOIN lockfast.claims c
    ON c.namespace = p_namespace AND c.session = refs.session AND c.n = refs.n
  UNION ALL
  SELECT 's' || E'\x1f' || s.id, lockfast.session_row(s) FROM (
    SELECT refs.session FROM refs UNION SELECT x #>> '{}' FROM json_array_elements(p_sessions) x
  ) i JOIN lockfast.sessions s ON s.namespace = p_namespace AND s.id = i.session;
END $$;

-- Take the locks of a step and load its rows. `p_alone` is for the gate, `p_shared` and
-- `p_exclusive` name sessions. With `p_try` nothing is waited for: a lock that is taken answers
-- the single row `taken`. The row `drawn` has an arrival and a token; `stale` in its place says
-- that the epoch must be raised first.
CREATE OR REPLACE FUNCTION lockfast.begin_step(
  p_namespace text, p_alone boolean, p_shared json, p_exclusive json, p_resources json,
  p_claims json, p_try boolean, p_now_ms bigint)
RETURNS TABLE (key text, value json) LANGUAGE plpgsql AS $$
DECLARE
  v_lock record;
  v_sessions json;
BEGIN
  -- A client that stops in the middle of a step must not keep its locks.
  PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
  FOR v_lock IN
    SELECT 0 AS part, lockfast.gate_key() AS lock_key, NOT p_alone AS is_shared
    UNION ALL SELECT 1, lockfast.session_key(p_namespace, x #>> '{}'), true
      FROM json_array_elements(p_shared) x
    UNION ALL SELECT 1, lockfast.session_key(p_namespace, x #>> '{}'), false
      FROM json_array_elements(p_exclusive) x
    UNION ALL SELECT 2, lockfast.resource_key(p_namespace, x ->> 0, x ->> 1), false
      FROM json_array_elements(p_resources) x
    ORDER BY part, lock_key, is_shared
  LOOP
    IF p_try THEN
      IF NOT (CASE WHEN v_lock.is_shared THEN pg_try_advisory_xact_lock_shared(v_lock.lock_key)
              ELSE pg_try_advisory_xact_lock(v_lock.lock_key) END) THEN
        RETURN QUERY SELECT 'taken'::text, NULL::json;
        RETURN;
      END IF;
    ELSIF v_lock.is_shared THEN
      PERFORM pg_advisory_xact_lock_shared(v_lock.lock_key);
    ELSE
      PERFORM pg_advisory_xact_lock(v_lock.lock_key);
    END IF;
  END LOOP;
  IF lockfast.timeline() <> (SELECT timeline FROM lockfast.meta) THEN
    RETURN QUERY SELECT 'stale'::text, NULL::json;
  ELSE
    RETURN QUERY SELECT 'drawn'::text,
      json_build_array(nextval('lockfast.arrivals'), lockfast.draw_token(1));
  END IF;
  SELECT json_agg(x) INTO v_sessions FROM (
    SELECT x #>> '{}' AS x FROM json_array_elements(p_shared) x
    UNION SELECT x #>> '{}' FROM json_array_elements(p_exclusive) x) both_kinds;
  RETURN QUERY SELECT * FROM lockfast.load(
    p_namespace, coalesce(v_sessions, '[]'), p_resources, p_claims, false, p_now_ms);
END $$;

-- Count and checksum of a session's claims, as core/checksum.py computes them.
CREATE OR REPLACE FUNCTION lockfast.account(p_namespace text, p_session text)
RETURNS TABLE (claims bigint, checksum bigint) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT count(*), (coalesce(sum(x.x * x.x % 4294967296), 0) % 4294967296)::bigint
  FROM (
    SELECT (c.n * 40503 + CASE c.state WHEN 'holding' THEN c.token ELSE 0 END) % 67108859 AS x
    FROM lockfast.claims c
    WHERE c.namespace = p_namespace AND c.session = p_session
      AND c.state IN ('holding', 'waiting')) x;
END $$;

-- ── the short paths ──────────────────────────────────────────────────────────────────
-- Each does to the byte what the general path would do, or nothing and answers `general`.

-- What a waiting claim is told of a claim ahead of it: a Blocker of core/commands.py.
CREATE OR REPLACE FUNCTION lockfast.blocker(
  c lockfast.claims, s lockfast.sessions, p_now_ms bigint) RETURNS json LANGUAGE sql IMMUTABLE
RETURN json_build_array(c.session, c.n, s.owner, s.process, s.renewals, c.state = 'holding',
  c.token, p_now_ms - CASE c.state WHEN 'holding' THEN c.granted_ms ELSE c.entered_ms END);

-- Hold a lock that nobody uses, or stand last in the line of one that is held.
-- `p_places` is the claim's JSON; the outcome is granted, queued, busy or general.
CREATE OR REPLACE FUNCTION lockfast.enter(
  p_namespace text, p_session text, p_n bigint, p_kind text, p_name text, p_mode text,
  p_places text, p_actor text, p_queue boolean, p_priority integer, p_head_start_ms bigint,
  p_lock_delay_ms bigint, p_now_ms bigint,
  OUT outcome text, OUT granted_token bigint, OUT look_ms bigint, OUT ahead json)
LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint;
  v_session lockfast.sessions;
  v_resource lockfast.resources;
  v_claim lockfast.claims;
  v_other lockfast.sessions;
  v_last lockfast.lines;
  v_rank text;
  v_over_ms bigint := 1152921504606846976;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(lockfast.gate_key());
  PERFORM pg_advisory_xact_lock_shared(lockfast.session_key(p_namespace, p_session));
  PERFORM pg_advisory_xact_lock(lockfast.resource_key(p_namespace, p_kind, p_name));
  outcome := 'general';
  v_now_ms := lockfast.now_ms(p_now_ms);
  SELECT * INTO v_session FROM lockfast.sessions WHERE namespace = p_namespace AND id = p_session;
  IF NOT FOUND OR v_session.ended <> '' OR v_session.deadline_ms <= v_now_ms
    OR p_n < v_session.lowest OR p_n - v_session.lowest >= 100000
    OR lockfast.is_logged_or_due(p_namespace, v_now_ms)
    OR EXISTS (SELECT 1 FROM lockfast.claims
      WHERE namespace = p_namespace AND session = p_session AND n = p_n)
  THEN
    RETURN;
  END IF;
  SELECT * INTO v_resource FROM lockfast.resources
    WHERE namespace = p_namespace AND kind = p_kind AND name = p_name;
  IF NOT FOUND THEN
    IF lockfast.timeline() <> (SELECT timeline FROM lockfast.meta) THEN
      RETURN;
    END IF;
    outcome := 'granted';
    granted_token := lockfast.draw_token(1);
    v_rank := lpad(to_hex(v_now_ms - p_head_start_ms + 4611686018427387904), 16, '0')
      || lpad(to_hex(nextval('lockfast.arrivals')), 16, '0');
    INSERT INTO lockfast.claims VALUES (p_namespace, p_session, p_n, p_places, 'holding', v_rank,
      p_actor, p_priority, v_now_ms, granted_token, v_now_ms, 0, 0, p_lock_delay_ms, 1, NULL, 0,
      0, '', '', '', 0, 0);
    INSERT INTO lockfast.resources VALUES (p_namespace, p_kind, p_name,
      '{"' || p_mode || '":1}', '{}', 1, 0, 0,
      v_rank || E'\x1f' || p_session || E'\x1f' || p_n, '', 0, 0, 0);
    RETURN;
  END IF;
  -- It is in use: whether the claim could hold beside the others is left to the general path.
  IF p_mode <> 'exclusive' OR v_resource.holders = 0 OR v_resource.reservations > 0
    OR v_resource.converting <> '' OR v_resource.closed_ms > 0 OR v_resource.retained > 0
    OR v_resource.waiting >= 100000 OR (v_resource.waiting = 0 AND v_resource.sole = '')
  THEN
    RETURN;
  END IF;
  v_rank := lpad(to_hex(v_now_ms - p_head_start_ms + 4611686018427387904), 16, '0')
    || lpad(to_hex(nextval('lockfast.arrivals')), 16, '0');
  IF v_resource.waiting > 0 THEN
    SELECT * INTO STRICT v_last FROM lockfast.lines
      WHERE namespace = p_namespace AND kind = p_kind AND name = p_name AND line = 'w'
      ORDER BY rank DESC LIMIT 1;
    IF v_last.rank > v_rank THEN
      RETURN;
    END IF;
  ELSE
    v_last.session := split_part(v_resource.sole, E'\x1f', 2);
    v_last.n := split_part(v_resource.sole, E'\x1f', 3)::bigint;
  END IF;
  SELECT * INTO STRICT v_claim FROM lockfast.claims
    WHERE namespace = p_namespace AND session = v_last.session AND n = v_last.n;
  SELECT * INTO STRICT v_other FROM lockfast.sessions
    WHERE namespace = p_namespace AND id = v_last.session;
  ahead := json_build_array(lockfast.blocker(v_claim, v_other, v_now_ms));
  IF NOT p_queue THEN
    outcome := 'busy';
    -- The number must not come again; after a crash its session tells the same.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO lockfast.claims VALUES (p_namespace, p_session, p_n, '[]', 'finished', '', '', 0,
      0, 0, 0, 0, 0, 0, 1, NULL, 0, 0, '', '', '', 0, 0);
    RETURN;
  END IF;
  outcome := 'queued';
  v_over_ms := least(v_over_ms, v_other.deadline_ms);
  IF v_claim.until_ms > 0 THEN
    v_over_ms := least(v_over_ms, v_claim.until_ms);
  END IF;
  look_ms := greatest(1, v_over_ms - v_now_ms);
  INSERT INTO lockfast.claims VALUES (p_namespace, p_session, p_n, p_places, 'waiting', v_rank,
    p_actor, p_priority, v_now_ms, 0, 0, 0, 0, p_lock_delay_ms, 1, NULL, 0, 0, '', '', '', 0, 0);
  INSERT INTO lockfast.lines VALUES (p_namespace, p_kind, p_name, 'w', v_rank, p_session, p_n);
  UPDATE lockfast.resources SET waiting = waiting + 1
    WHERE namespace = p_namespace AND kind = p_kind AND name = p_name;
END $$;

-- Give up the only hold on a resource; the first in its line, `p_heir` being the JSON of a plain
-- exclusive claim, becomes the holder and is notified unless it listens on `p_channel`.
CREATE OR REPLACE FUNCTION lockfast.leave(
  p_namespace text, p_session text, p_n bigint, p_kind text, p_name text, p_heir text,
  p_channel text, p_now_ms bigint,
  OUT outcome text, OUT heir_inbox text, OUT heir_session text, OUT heir_n bigint,
  OUT heir_token bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint;
  v_session lockfast.sessions;
  v_claim lockfast.claims;
  v_resource lockfast.resources;
  v_first lockfast.lines;
  v_heir lockfast.claims;
  v_other lockfast.sessions;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(lockfast.gate_key());
  PERFORM pg_advisory_xact_lock_shared(lockfast.session_key(p_namespace, p_session));
  PERFORM pg_advisory_xact_lock(lockfast.resource_key(p_namespace, p_kind, p_name));
  outcome := 'general';
  v_now_ms := lockfast.now_ms(p_now_ms);
  SELECT * INTO v_session FROM lockfast.sessions WHERE namespace = p_namespace AND id = p_session;
  IF NOT FOUND OR v_session.ended <> '' OR v_session.deadline_ms <= v_now_ms
    OR lockfast.is_logged_or_due(p_namespace, v_now_ms)
  THEN
    RETURN;
  END IF;
  SELECT * INTO v_claim FROM lockfast.claims
    WHERE namespace = p_namespace AND session = p_session AND n = p_n;
  IF NOT FOUND OR v_claim.state <> 'holding' OR v_claim.until_ms > 0 OR v_claim.block > 1
    OR v_claim.places LIKE '%],[%'
  THEN
    RETURN;
  END IF;
  SELECT * INTO v_resource FROM lockfast.resources
    WHERE namespace = p_namespace AND kind = p_kind AND name = p_name;
  IF NOT FOUND OR v_resource.reservations > 0 OR v_resource.closed_ms > 0
    OR v_resource.converting <> ''
    OR v_resource.sole <> v_claim.rank || E'\x1f' || p_session || E'\x1f' || p_n
  THEN
    RETURN;
  END IF;
  IF v_resource.waiting = 0 THEN
    DELETE FROM lockfast.resources
      WHERE namespace = p_namespace AND kind = p_kind AND name = p_name;
  ELSE
    SELECT * INTO STRICT v_first FROM lockfast.lines
      WHERE namespace = p_namespace AND kind = p_kind AND name = p_name AND line = 'w'
      ORDER BY rank LIMIT 1;
    SELECT * INTO STRICT v_heir FROM lockfast.claims
      WHERE namespace = p_namespace AND session = v_first.session AND n = v_first.n;
    SELECT * INTO STRICT v_other FROM lockfast.sessions
      WHERE namespace = p_namespace AND id = v_first.session;
    IF v_heir.places <> p_heir OR v_heir.max_hold_ms > 0 OR v_heir.block > 1
      OR v_heir.window_ms > 0 OR v_heir.value IS NOT NULL OR v_other.ended <> ''
      OR lockfast.timeline() <> (SELECT timeline FROM lockfast.meta)
    THEN
      RETURN;
    END IF;
    heir_inbox := v_other.inbox;
    heir_session := v_first.session;
    heir_n := v_first.n;
    heir_token := lockfast.draw_token(1);
    DELETE FROM lockfast.lines WHERE namespace = p_namespace AND kind = p_kind
      AND name = p_name AND line = 'w' AND rank = v_first.rank;
    UPDATE lockfast.claims SET state = 'holding', token = heir_token, granted_ms = v_now_ms
      WHERE namespace = p_namespace AND session = heir_session AND n = heir_n;
    UPDATE lockfast.resources SET held = '{"exclusive":1}', waiting = waiting - 1,
        sole = v_heir.rank || E'\x1f' || heir_session || E'\x1f' || heir_n
      WHERE namespace = p_namespace AND kind = p_kind AND name = p_name;
    IF split_part(heir_inbox, ' ', 1) NOT IN ('', p_channel) THEN
      PERFORM pg_notify(split_part(heir_inbox, ' ', 1),
        substr(heir_inbox, length(split_part(heir_inbox, ' ', 1)) + 2) || ' ' || heir_session
        || ' ' || heir_n || ' granted ' || heir_token);
    END IF;
  END IF;
  UPDATE lockfast.claims SET state = 'finished', places = '[]', rank = '', actor = '',
      value = NULL, due_ms = 0
    WHERE namespace = p_namespace AND session = p_session AND n = p_n;
  outcome := 'done';
END $$;

-- Renew a session that waits for nothing; forget its finished numbers below `p_lowest`.
CREATE OR REPLACE FUNCTION lockfast.renew(
  p_namespace text, p_session text, p_claims bigint, p_checksum bigint, p_lowest bigint,
  p_now_ms bigint, OUT outcome text, OUT matches boolean)
LANGUAGE plpgsql AS $$
DECLARE
  v_now_ms bigint;
  v_lowest bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(lockfast.gate_key());
  PERFORM pg_advisory_xact_lock_shared(lockfast.session_key(p_namespace, p_session));
  outcome := 'general';
  v_now_ms := lockfast.now_ms(p_now_ms);
  IF lockfast.is_logged_or_due(p_namespace, v_now_ms) THEN
    RETURN;
  END IF;
  UPDATE lockfast.sessions SET deadline_ms = v_now_ms + ttl_ms, renewals = renewals + 1,
      lowest = greatest(lowest, p_lowest)
    WHERE namespace = p_namespace AND id = p_session AND ended = '' AND deadline_ms > v_now_ms
    RETURNING lowest INTO v_lowest;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  DELETE FROM lockfast.claims
    WHERE namespace = p_namespace AND session = p_session AND n < v_lowest AND state = 'finished';
  SELECT a.claims = p_claims AND a.checksum = p_checksum INTO matches
    FROM lockfast.account(p_namespace, p_session) a;
  outcome := 'renewed';
END $$;
