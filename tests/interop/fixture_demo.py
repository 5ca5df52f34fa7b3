# SPDX-License-Identifier: Apache-2.0
"""The demo's two source tables, `orders` and `users`, in two rounds.

u13 and u14 never order anything; the orders of u99 belong to nobody.
"""

from decimal import Decimal

from sparkhudi import HudiTable

ORDERS = """
    order_id string, user_id string, amount decimal(10,2), status string,
    order_date string, updated_at long, note string
"""
USERS = "user_id string, name string, email string, tier string, updated_at long"

NAMES = [
    "Ada", "Boris", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hiro",
    "Ines", "Jonas", "Kofi", "Lena", "Mira", "Noor", "Olaf", "Pia",
]  # fmt: skip

MIDNIGHT = 1_714_521_600_000  # 2024-05-01T00:00:00Z in milliseconds
HOUR = 3_600_000


def _order(number, hour, status="new", note=None):
    user = "u99" if number % 20 == 7 else f"u{(number * 5) % 12 + 1:02}"
    amount = Decimal(number * 737 % 20_000 + 199) / 100
    # Fifteen orders a day; an order never changes its day, hence its partition.
    day = f"2024-05-{(number - 1) // 15 + 1:02}"
    return (f"o{number:03}", user, amount, status, day, MIDNIGHT + hour * HOUR + number, note)


def _orders(numbers, hour, **fields):
    return [_order(number, hour, **fields) for number in numbers]


ORDERS_ROUND_1 = [
    _orders(range(1, 25), 1),
    _orders(range(25, 41), 2) + _orders([3, 10, 17], 2, status="paid"),
    _orders(range(41, 53), 3)
    + _orders([3, 28], 3, status="shipped", note="by train")
    + _orders([5], 3, status="cancelled", note="customer called"),
]
ORDERS_ROUND_2 = [
    _orders(range(53, 58), 4) + _orders([10, 41, 42], 4, status="paid"),
    # An old order in the oldest partition comes to life again.
    _orders(range(58, 61), 5) + _orders([1], 5, status="refunded", note="found after weeks"),
]


def _user(number, hour, tier="basic", email=True):
    name = NAMES[number - 1]
    address = f"{name.lower()}@example.org" if email else None
    return (f"u{number:02}", name, address, tier, MIDNIGHT + hour * HOUR + number)


USERS_ROUND_1 = [
    [_user(number, 0, email=number % 4 != 0) for number in range(1, 13)],
    [_user(2, 2, tier="silver"), _user(4, 2)] + [_user(number, 2) for number in (13, 14, 15)],
]
USERS_ROUND_2 = [[_user(1, 4, tier="gold"), _user(16, 4, email=False)]]


def open_tables(spark, folder):
    orders = HudiTable(
        spark, folder / "orders", key="order_id", partition=["order_date"], ordering="updated_at"
    )
    # One source with a metadata table, one without.
    users = HudiTable(spark, folder / "users", key="user_id", ordering="updated_at", metadata=False)
    return orders, users


def write_round(spark, tables, order_commits, user_commits):
    orders, users = tables
    for rows in order_commits:
        orders.write(spark.createDataFrame(rows, ORDERS))
    for rows in user_commits:
        users.write(spark.createDataFrame(rows, USERS))
