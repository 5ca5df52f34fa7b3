-- Users that any change touched, on either side of the join.
CREATE TEMPORARY VIEW touched AS
SELECT user_id FROM <SRC:orders> UNION SELECT user_id FROM <SRC:users>;

CREATE TEMPORARY VIEW totals AS
SELECT o.user_id, count(*) AS orders, sum(o.amount) AS spent, max(o.updated_at) AS last_order_at
FROM <SNAP:orders> o JOIN touched t ON o.user_id = t.user_id
GROUP BY o.user_id;

CREATE TEMPORARY VIEW profiles AS
SELECT u.user_id, u.name, u.tier FROM <SNAP:users> u JOIN touched t ON u.user_id = t.user_id;

-- Users without orders and orders without a user both stay.
SELECT COALESCE(t.user_id, p.user_id) AS user_id, p.name, p.tier, t.orders, t.spent, t.last_order_at
FROM totals t FULL OUTER JOIN profiles p ON t.user_id = p.user_id
