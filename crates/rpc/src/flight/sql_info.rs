// SPDX-License-Identifier: Apache-2.0
//! What drivers ask of a Flight SQL server before anything else: what it can do, and which types it has.

use std::sync::OnceLock;

use arrow::error::ArrowError;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{
    SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    Nullable, Searchable, SqlInfo, SqlNullOrdering, SqlSupportedCaseSensitivity, SqlSupportedTransaction, XdbcDataType,
    XdbcDatetimeSubcode,
};
use tonic::Status;

use super::rows::unsendable;

/// Made once: it never changes.
fn kept<T>(
    made: &'static OnceLock<Result<T, String>>,
    make: fn() -> Result<T, FlightError>,
) -> Result<&'static T, Status> {
    let made = made.get_or_init(|| make().map_err(|e| e.to_string()));
    made.as_ref().map_err(|e| unsendable("the server cannot be described", ArrowError::IpcError(e.clone())))
}

/// What the server can do.
pub(crate) fn server_info() -> Result<&'static SqlInfoData, Status> {
    static MADE: OnceLock<Result<SqlInfoData, String>> = OnceLock::new();
    kept(&MADE, || {
        let mut info = SqlInfoDataBuilder::new();
        info.append(SqlInfo::FlightSqlServerName, "Tributary");
        info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
        info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
        info.append(SqlInfo::FlightSqlServerReadOnly, true);
        info.append(SqlInfo::FlightSqlServerSql, true);
        info.append(SqlInfo::FlightSqlServerSubstrait, false);
        info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
        info.append(SqlInfo::FlightSqlServerCancel, true);
        info.append(SqlInfo::FlightSqlServerBulkIngestion, false);
        info.append(SqlInfo::FlightSqlServerStatementTimeout, 0);
        info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0);
        info.append(SqlInfo::SqlDdlCatalog, false);
        info.append(SqlInfo::SqlDdlSchema, false);
        info.append(SqlInfo::SqlDdlTable, false);
        // Names in backticks, as in Spark; text in double quotes is a string.
        info.append(SqlInfo::SqlIdentifierQuoteChar, "`");
        info.append(SqlInfo::SqlIdentifierCase, SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32);
        info.append(
            SqlInfo::SqlQuotedIdentifierCase,
            SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32,
        );
        info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedLow as i32);
        info.append(SqlInfo::SqlTransactionsSupported, false);
        info.append(SqlInfo::SqlSelectForUpdateSupported, false);
        info.append(SqlInfo::SqlStoredProceduresSupported, false);
        info.build()
    })
}

/// The types of columns.
pub(crate) fn type_info() -> Result<&'static XdbcTypeInfoData, Status> {
    static MADE: OnceLock<Result<XdbcTypeInfoData, String>> = OnceLock::new();
    kept(&MADE, || {
        let mut types = XdbcTypeInfoDataBuilder::new();
        let whole = [
            ("TINYINT", XdbcDataType::XdbcTinyint, 3),
            ("SMALLINT", XdbcDataType::XdbcSmallint, 5),
            ("INT", XdbcDataType::XdbcInteger, 10),
            ("BIGINT", XdbcDataType::XdbcBigint, 19),
            ("FLOAT", XdbcDataType::XdbcReal, 7),
            ("DOUBLE", XdbcDataType::XdbcDouble, 15),
            ("DECIMAL", XdbcDataType::XdbcDecimal, 38),
        ];
        for (name, data_type, digits) in whole {
            types.append(XdbcTypeInfo {
                column_size: Some(digits),
                unsigned_attribute: Some(false),
                num_prec_radix: Some(10),
                create_params: (name == "DECIMAL").then(|| vec!["precision".to_string(), "scale".to_string()]),
                ..plain(name, data_type)
            });
        }
        types.append(plain("BOOLEAN", XdbcDataType::XdbcBit));
        types.append(XdbcTypeInfo {
            literal_prefix: Some("'".to_string()),
            literal_suffix: Some("'".to_string()),
            case_sensitive: true,
            ..plain("STRING", XdbcDataType::XdbcVarchar)
        });
        types.append(plain("BINARY", XdbcDataType::XdbcVarbinary));
        types.append(XdbcTypeInfo {
            literal_prefix: Some("DATE '".to_string()),
            literal_suffix: Some("'".to_string()),
            sql_data_type: XdbcDataType::XdbcDatetime,
            // 1 is YEAR among intervals and DATE among dates.
            datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeYear),
            ..plain("DATE", XdbcDataType::XdbcDate)
        });
        types.append(XdbcTypeInfo {
            literal_prefix: Some("TIMESTAMP '".to_string()),
            literal_suffix: Some("'".to_string()),
            sql_data_type: XdbcDataType::XdbcDatetime,
            datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
            ..plain("TIMESTAMP", XdbcDataType::XdbcTimestamp)
        });
        types.build()
    })
}

fn plain(name: &str, data_type: XdbcDataType) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_string(),
        data_type,
        sql_data_type: data_type,
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Full,
        ..XdbcTypeInfo::default()
    }
}
