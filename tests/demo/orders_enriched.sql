SELECT o.order_id, o.user_id, u.name AS user_name, u.tier, o.amount, o.status, o.order_date, o.updated_at
FROM <SRC:orders> o
LEFT JOIN <SNAP:users> u ON o.user_id = u.user_id
