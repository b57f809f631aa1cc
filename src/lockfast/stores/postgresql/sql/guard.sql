-- guard.sql  the floors of guards, for any database whose writes are to be fenced
--
-- SELECT lockfast.admit('orders/42', 17) inside a transaction refuses a token that is older than
-- one admitted before, with SQLSTATE LF001; what is written after it commits with the new floor.

CREATE SCHEMA IF NOT EXISTS lockfast;

CREATE TABLE IF NOT EXISTS lockfast.floors (
  scope text COLLATE "C" NOT NULL,      -- name, tree, below: see lockfast/guards/admission.py
  resource text COLLATE "C" NOT NULL,
  floor bigint NOT NULL,
  PRIMARY KEY (scope, resource)
) WITH (fillfactor = 70);

-- Admit a token and return NULL, or change nothing and return the floor that refuses it. The
-- floors are locked until the end of the transaction, in one order, before they are compared.
-- `p_shared` compares only; `p_once` refuses a token that was admitted before; `p_tree` takes
-- names for paths and compares the floors of all ancestors and of everything beneath.
CREATE OR REPLACE FUNCTION lockfast.try_admit(
  p_resource text, p_token bigint, p_shared boolean DEFAULT false, p_once boolean DEFAULT false,
  p_tree boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_parts text[] := string_to_array(p_resource, '/');
  v_compared text[];
  v_raised text[];
  v_floor bigint;
BEGIN
  IF p_token IS NULL OR p_token < 1 OR p_resource IS NULL OR p_resource = '' THEN
    RAISE EXCEPTION 'admit needs a resource and a token of at least 1' USING ERRCODE = '22023';
  END IF;
  IF NOT p_tree THEN
    v_compared := ARRAY['name ' || p_resource];
    v_raised := v_compared;
  ELSE
    SELECT array_agg('tree ' || array_to_string(v_parts[1:i], '/')) || ('below ' || p_resource)
      INTO v_compared FROM generate_series(1, array_length(v_parts, 1)) i;
    SELECT ('tree ' || p_resource)
        || coalesce(array_agg('below ' || array_to_string(v_parts[1:i], '/')), '{}')
      INTO v_raised FROM generate_series(1, array_length(v_parts, 1) - 1) i;
  END IF;
  IF p_shared THEN
    PERFORM 1 FROM lockfast.floors f
      WHERE (f.scope, f.resource) IN (
        SELECT split_part(m, ' ', 1), substr(m, strpos(m, ' ') + 1) FROM unnest(v_compared) m)
      ORDER BY f.scope, f.resource FOR SHARE;
  ELSE
    INSERT INTO lockfast.floors AS f (scope, resource, floor)
      SELECT DISTINCT split_part(m, ' ', 1), substr(m, strpos(m, ' ') + 1), 0
      FROM unnest(v_compared || v_raised) m ORDER BY 1, 2
      ON CONFLICT (scope, resource) DO UPDATE SET floor = f.floor;
  END IF;
  SELECT coalesce(max(f.floor), 0) INTO v_floor FROM unnest(v_compared) m
    JOIN lockfast.floors f ON f.scope = split_part(m, ' ', 1)
      AND f.resource = substr(m, strpos(m, ' ') + 1);
  IF p_token < v_floor OR (p_once AND p_token = v_floor) THEN
    RETURN v_floor;
  END IF;
  IF NOT p_shared THEN
    UPDATE lockfast.floors f SET floor = p_token FROM unnest(v_raised) m
      WHERE f.scope = split_part(m, ' ', 1) AND f.resource = substr(m, strpos(m, ' ') + 1)
        AND f.floor < p_token;
  END IF;
  RETURN NULL;
END $$;

-- As try_admit, and raise SQLSTATE LF001 for a token that is refused: the transaction is over.
CREATE OR REPLACE FUNCTION lockfast.admit(
  p_resource text, p_token bigint, p_shared boolean DEFAULT false, p_once boolean DEFAULT false,
  p_tree boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_floor bigint := lockfast.try_admit(p_resource, p_token, p_shared, p_once, p_tree);
BEGIN
  IF v_floor IS NOT NULL THEN
    RAISE EXCEPTION 'write to % refused: token % is older than %, already admitted',
      p_resource, p_token, v_floor
      USING ERRCODE = 'LF001', HINT = 'acquire the lock again';
  END IF;
END $$;
