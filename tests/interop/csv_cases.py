# SPDX-License-Identifier: Apache-2.0
"""CSV files that readers are known to disagree about, with the options to read them by.

Options have the names that they have in a pipeline file, over the preset `spark`. What differs from Spark
on purpose says why (`because`), and what Tributary makes of it (`ours`).
"""

import bz2
import gzip
from dataclasses import dataclass, field

CORRUPT = {"column_name_of_corrupt_record": "_corrupt_record"}
DROP = {"mode": "dropmalformed"}
FAIL = {"mode": "failfast"}
TRIM = {"ignore_leading_white_space": True, "ignore_trailing_white_space": True}
LINES = {"multi_line": True}
DOUBLED = {"escape": '"'}
NAMED = {"header": True}

TWO = "a string, b string"
KEPT = "a string, b string, _corrupt_record string"


@dataclass
class Case:
    name: str
    files: object
    columns: str = TWO
    options: dict = field(default_factory=dict)
    because: str = None
    ours: object = None

    def __post_init__(self):
        if not isinstance(self.files, dict):
            self.files = {"a.csv": self.files}


def two(*rows):
    return [dict(zip(("a", "b"), row)) for row in rows]


def kept(*rows):
    return [dict(zip(("a", "b", "_corrupt_record"), row)) for row in rows]


QUOTES = [
    Case("plain", "1,2\n3,4\n"),
    Case("quoted_separator", '"x,y",2\n1,"x,y"\n'),
    Case("escaped_quote", '"say \\"hi\\"",2\n1,"\\""\n'),
    Case("doubled_quote_that_is_no_escape", '"say ""hi""",2\n1,"say ""hi"""\n'),
    Case("row_of_closing_quotes", '"a""",2\n"""",2\n"""a",2\n"a"""",2\n'),
    Case("doubled_quote_as_escape", '"say ""hi""",2\n"",""""\n"a""b","c"d\n"""a"b,2\n', options=DOUBLED),
    Case("backslashes", '"a\\\\b",2\n"c\\nd","\\\\"\na\\,b\n'),
    Case("text_behind_a_closing_quote", '"x"y,2\n1,"x"y\n'),
    Case("separator_in_quotes_with_text_behind", '"a,b"c,2\n1,"a,b"c\n'),
    Case("escape_in_quotes_with_text_behind", '"a\\"b"c,2\n"a\\"b"c\\"d,2\n'),
    Case("white_space_behind_a_closing_quote", '"x" ,2\n1,"x"\t \n"",""  \n'),
    Case("white_space_and_text_behind_a_closing_quote", '"x" y,2\n1,"x"  y \n'),
    Case("quote_in_the_middle", '5" pipe,it\'s "ok"\na"b",c\n'),
    Case("white_space_before_a_quote", ' "x",2\n1, "x,y"\n'),
    Case("quote_never_closed_in_the_last_field", '1,"open\n2,x\n'),
    Case("quote_never_closed_in_the_first_field", '"open,1\n2,x\n'),
    Case("quote_never_closed_with_an_escape", '1,"a\\"b\n2,x\n'),
    Case("quote_alone", '1,"\n2,x\n'),
    Case("quote_before_a_line_break", '"a\nb",2\n3,4\n', columns=KEPT, options=CORRUPT),
    Case("single_quotes", "'x,y',2\n\"x\",'it\\'s'\n", options={"quote": "'"}),
    Case("no_quotes", '"x",2\n"x,y"\n', options={"quote": ""}),
    Case("another_escape", '"a^"b",2\n"c\\d","^^"\n', options={"escape": "^"}),
    Case("escape_of_the_escape", '"x#\\",2\n1,"a\\"b"\n', options={"char_to_escape_quote_escaping": "#"}),
    Case("no_escape", '"a\\",2\n"b\\c",3\n', options={"escape": ""}),
    Case("empty_quotes", '"",""\n"", x\n'),
]

EMPTY = [
    Case("empty_fields", ",\n,x\n1,\n"),
    Case("quoted_and_unquoted_empty", '"",x\n,x\nx,""\n'),
    Case("null_value", 'NA,"NA"\n"",\nx,NAN\n', options={"null_value": "NA"}),
    Case("empty_value", '"",\nx,""\n', options={"empty_value": "(empty)"}),
    Case("null_value_and_empty_value", '"",\nNA,""\n', options={"null_value": "NA", "empty_value": "-"}),
    Case("empty_value_that_is_null", '"",\nx,""\n', options={"null_value": "NA", "empty_value": "NA"}),
    Case("empty_numbers", '"",1\n,2\n3,\n', columns="a int, b double"),
    Case("null_value_of_numbers", "NA,1\n2,NA\n,3\n", columns="a int, b double", options={"null_value": "NA"}),
    Case("quoted_empty_number_beside_a_null_value", '"",1\n2,""\n', columns="a int, b double, _corrupt_record string",
         options={"null_value": "NA", **CORRUPT}),
]

WHITE_SPACE = [
    Case("white_space_is_kept", " x , y \n\tz,w\t\n"),
    Case("white_space_is_trimmed", " x , y \n\tz,w\t\n  , \n", options=TRIM),
    Case("white_space_is_trimmed_before", " x , y \n", options={"ignore_leading_white_space": True}),
    Case("white_space_is_trimmed_behind", " x , y \n", options={"ignore_trailing_white_space": True}),
    Case("quoted_white_space_is_kept", ' " x " ,2\n1," y "\n', options=TRIM),
    Case("control_characters_are_trimmed", "\x0bx\x0c,\x01y\x02\n", options=TRIM),
    Case("blank_lines", "1,2\n\n   \n\t\n3,4\n\n"),
    Case("lines_of_separators", ",\n1,2\n , \n"),
    Case("white_space_in_numbers", " 5, 1.5\n6 ,2.5 \n",
         columns="a int, b double, _corrupt_record string", options=CORRUPT),
]

SEPARATORS = [
    Case("tabs", "1\t2\n\t\nx\t\n", options={"sep": "\t"}),
    Case("tabs_by_name", "1\t2\n", options={"sep": "\\t"}),
    Case("semicolons", '1;2\n"a;b";c,d\n', options={"sep": ";"}),
    Case("control_character", "1\x012\nx\x01\n", options={"sep": "\x01"}),
    Case("spaces", '1 2\n"a b" c\n', options={"sep": " "}),
    Case("two_characters", 'x|y||z\n"a||b"||c\n||\n1||"a|b"\n|||x\n', options={"sep": "||"}),
    Case("two_characters_and_white_space", ' x || "y" \n"a"  ||b\n', options={"sep": "||", **TRIM}),
    Case("beginning_with_a_separator_of_two_characters", '"||a"||b\n', options={"sep": "||"}),
    Case("two_characters_behind_text_behind_a_quote", '"x"y||2\n', options={"sep": "||"}),
]

COMMENTS = [
    Case("comments", '#c,d\n1,2\n#"\n3,#4\n #5,6\n"#7",8\n', options={"comment": "#"}),
    Case("no_comments", "#c,d\n1,2\n"),
    Case("comments_before_a_header", "# about\n\na,b\n1,2\n#x\n3,4\n", options={"comment": "#", **NAMED}),
]

LINE_BREAKS = [
    Case("carriage_returns_and_line_feeds", '1,2\r\n"3","4"\r\n,\r\n'),
    Case("carriage_returns", "1,2\r3,4\r"),
    Case("mixed_line_breaks", "1,2\r\n3,4\n5,6\r7,8"),
    Case("no_break_at_the_end", '1,2\n3,"4"'),
    Case("empty_file", {"a.csv": "", "b.csv": "1,2\n"}),
    Case("white_space_only", "\n  \n\r\n"),
    Case("header_only", "a,b\n", options=NAMED),
    Case("several_files", {"a.csv": "a,b\n1,2\n", "b.csv": "a,b\n3,4\n", "_c.csv": "5,6\n", ".d.csv": "7,8\n"},
         options=NAMED),
]

RECORDS_OF_LINES = [
    Case("line_break_in_quotes", '"a\nb",2\n1,"c\n\nd"\n', options=LINES),
    Case("doubled_quotes_over_lines", '"a ""x""\nb",2\n', options={**LINES, **DOUBLED}),
    Case("lines_with_carriage_returns", "1,2\r\n3,4\r\n", options=LINES),
    Case("quoted_carriage_returns", '"a\r\nb",2\r\n3,4\r\n', options=LINES,
         because="Spark makes line feeds of the line breaks in a field", ours=two(("a\r\nb", "2"), ("3", "4"))),
    Case("mixed_breaks_over_lines", "1,2\r\n3,4\n5,6\r\n", options=LINES,
         because="Spark knows only the kind of line break that it saw first", ours=two(("1", "2"), ("3", "4"), ("5", "6"))),
    Case("blank_lines_over_lines", "1,2\n\n3,4\n", options=LINES),
    Case("white_space_lines_over_lines", "1,2\n   \n3,4\n", options=LINES),
    Case("white_space_lines_trimmed_over_lines", "1,2\n   \n3,4\n", options={**LINES, **TRIM}),
    Case("comments_over_lines", '#"\n1,"2\n#3"\n', options={**LINES, "comment": "#"}),
    Case("quote_never_closed_over_lines", '1,2\n3,"open\n5,6\n', options={**LINES, **CORRUPT}, columns=KEPT,
         because="Spark takes the rest of the file for the field; here the line is a bad record",
         ours=kept(("1", "2", None), (None, None, '3,"open'), ("5", "6", None))),
    Case("header_over_lines", '"a","b\nc"\n1,2\n', options={**LINES, **NAMED}),
]

RAGGED = [
    Case("ragged", "1\n2,x\n3,y,z\n"),
    Case("ragged_in_the_corrupt_column", "1\n2,x\n3,y,z\n", columns=KEPT, options=CORRUPT),
    Case("ragged_is_dropped", "1\n2,x\n3,y,z\n", options=DROP),
    Case("short_fails_fast", "2,x\n1\n", options=FAIL),
    Case("long_fails_fast", "2,x\n1,2,3\n", options=FAIL),
    Case("separator_at_the_end", "1,2,\n3,4,\n", columns=KEPT, options=CORRUPT),
    Case("header_narrower_than_records", "a,b\n1,2,3\n4\n", columns=None, options=NAMED),
]

TYPES = [
    Case("bad_cell_is_null", "1,2.5\nx,3.5\n3,y\n", columns="a int, b double"),
    Case("bad_cell_in_the_corrupt_column", '1,2.5\nx,3.5\n3,"y"\n',
         columns="a int, b double, _corrupt_record string", options=CORRUPT),
    Case("bad_cell_is_dropped", "1,2.5\nx,3.5\n3,y\n", columns="a int, b double", options=DROP),
    Case("bad_cell_fails_fast", "1,2.5\nx,3.5\n", columns="a int, b double", options=FAIL),
    Case("good_cells_pass_fast", '1,2.5\n"2",\n', columns="a int, b double", options=FAIL),
    Case("integers", "2147483647,9223372036854775807\n2147483648,9223372036854775808\n-1,+1\n1.0,1e3\n007,-0\n",
         columns="a int, b bigint"),
    Case("doubles", "1e3,.5\n1.,-0.0\n1d,2.5F\nNaN,Infinity\n-Infinity,nan\nInf,-Inf\n1_0,--1\n",
         columns="a double, b double"),
    Case("singles", "1.1,3.4e38\n1e39,x\n", columns="a float, b float"),
    Case("words_for_doubles", "-,oo\n-oo,NaN\n1,Inf\n", columns="a double, b double",
         options={"nan_value": "-", "positive_inf": "oo", "negative_inf": "-oo"}),
    Case("booleans", "true,FALSE\nTrue,0\nyes,\n", columns="a boolean, b boolean"),
    Case("decimals", "1.5,-2\n1.50,1e1\n.5,00.10\nx,123456789\n", columns="a decimal(10,2), b decimal(10,2)"),
    Case("decimals_that_do_not_fit", "1.505,1\n2,3\n", columns="a decimal(10,2), b decimal(10,2)",
         because="Spark rounds; no digit is dropped here, the cell is bad", ours=two((None, "1.00"), ("2.00", "3.00"))),
    Case("decimals_with_grouping", '"1,234.5",1\n', columns="a decimal(10,2), b decimal(10,2)",
         because="Spark leaves commas out wherever they are, and so takes `1,2` for 12", ours=two((None, "1.00"))),
    Case("dates", "2025-01-05,2025-1-5\n2025-01,2025\n2025-01-05 10:00:00,2025-01-05T10\n 2025-01-05 ,2025-02-29\n20250105,x\n",
         columns="a date, b date"),
    Case("date_format", "05.01.2025,1.2.2025\n31.12.1999,2025-01-01\n",
         columns="a date, b date", options={"date_format": "dd.MM.yyyy"}),
    Case("date_format_with_names", "5 Jan 2025,05 January 2025\n",
         columns="a date, b date", options={"date_format": "d MMM yyyy"},
         because="names of months are read in both of their lengths", ours=two(("2025-01-05", "2025-01-05"))),
    Case("times", "2025-01-05T10:20:30Z,2025-01-05 10:20:30\n2025-01-05T10:20:30.123456+02:00,2025-01-05 1:2:3\n"
         "2025-01-05,2025-01-05 10:20\n2025-01-05 10:20:30.1234567,2025-1-5T10\n2025-01-05 24:00:00,2025-13-01\nx,2025-01-05 10:20:30 UTC\n",
         columns="a timestamp, b timestamp"),
    Case("times_with_a_zone_and_no_seconds", "2025-01-05T10:20Z,\n", columns="a timestamp, b string",
         because="ISO 8601 allows it", ours=two(("2025-01-05T10:20:00.000000Z", None))),
    Case("zones_by_name", "2025-01-05 10:20:30 Europe/Paris,x\n", columns="a timestamp, b string",
         because="zones are offsets here", ours=two((None, "x"))),
    Case("time_format", "05/01/2025 10:20,05/01/2025 25:00\n2025-01-05,x\n", columns="a timestamp, b timestamp",
         options={"timestamp_format": "dd/MM/yyyy HH:mm"}),
    Case("time_format_with_optional_parts", "2025-01-05T10:20:30,2025-01-05T10:20:30.5\n2025-01-05T10:20:30.123Z,2025-01-05T10:20:30+01:00\n",
         columns="a timestamp, b timestamp", options={"timestamp_format": "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"}),
]

NAMES = [
    Case("names_of_a_header", "a,b\n1,2\n", columns=None, options=NAMED),
    Case("no_header_and_no_names", "1,2\n3,4\n", columns=None),
    Case("names_in_quotes", '"a","b"\n1,2\n', columns=None, options=NAMED),
    Case("names_twice", "a,b,A,a\n1,2,3,4\n", columns=None, options=NAMED),
    Case("names_left_out", "a,,\n1,2,3\n", columns=None, options=NAMED),
    Case("names_that_are_null", "a,NA\n1,2\n", columns=None, options={**NAMED, "null_value": "NA"}),
    Case("names_of_another_order_are_no_matter", "b,a\n1,2\n", options=NAMED),
    Case("names_of_another_order_are_followed", "b,a\n1,2\n", options={**NAMED, "enforce_schema": False},
         because="Spark refuses the file, here columns go by their names", ours=two(("2", "1"))),
    Case("names_of_another_case", "A,B\n1,2\n", options={**NAMED, "enforce_schema": False}),
    Case("header_repeated", "a,b\n1,2\na,b\n3,4\n", options=NAMED),
]

ENCODINGS = [
    Case("mark_before_a_header", b"\xef\xbb\xbfa,b\n1,2\n", columns=None, options=NAMED),
    Case("mark_before_a_quoted_header", b'\xef\xbb\xbf"a","b"\n1,2\n', columns=None, options=NAMED),
    Case("mark_before_a_record", b"\xef\xbb\xbfx,y\n"),
    Case("mark_over_lines", b'\xef\xbb\xbf"x\ny",z\n', options=LINES),
    Case("other_letters", '"ü,é",𝄞\n日本,"\\"語\\""\n'),
    Case("latin_1", "café,\"ü,ß\"\n".encode("latin-1"), options={"encoding": "ISO-8859-1"}),
    Case("utf_16_over_lines", '"ü\nx",y\n1,𝄞\n'.encode("utf-16"), options={"encoding": "UTF-16", **LINES}),
    Case("utf_16_of_one_order", "ü,y\n1,2\n".encode("utf-16-le"), options={"encoding": "UTF-16LE", **LINES}),
    Case("bytes_that_are_no_utf_8", b"x,caf\xe9\ny,z\n",
         because="Spark puts U+FFFD there, and nobody can tell what it was", ours=two(("x", None), ("y", "z"))),
    Case("nul", "a\x00b,\x00\nx,y\n"),
]

LIMITS = [
    Case("too_many_columns", "1,2\n1,2,3,4\n", options={"max_columns": 3},
         because="Spark fails the query, whatever the mode; here the record is bad", ours=two(("1", "2"), (None, None))),
    Case("field_too_long", "1,2\n12345,2\n", options={"max_chars_per_column": 4},
         because="Spark fails the query, whatever the mode; here the record is bad", ours=two(("1", "2"), (None, None))),
    Case("limits_that_are_kept", "1,2\n1234,2\n", options={"max_chars_per_column": 4, "max_columns": 2}),
]

COMPRESSED = [
    Case("gzip", {"a.csv.gz": gzip.compress(b"1,2\n3,4\n", mtime=0)}),
    Case("bzip2", {"a.csv.bz2": bz2.compress(b"1,2\n3,4\n")}),
]

CASES = [
    *QUOTES, *EMPTY, *WHITE_SPACE, *SEPARATORS, *COMMENTS, *LINE_BREAKS, *RECORDS_OF_LINES, *RAGGED, *TYPES,
    *NAMES, *ENCODINGS, *LIMITS, *COMPRESSED,
]  # fmt: skip
