// SPDX-License-Identifier: Apache-2.0
//! Plain DataFusion over plain parquet files: what bounds the speed of a batch, for benchmarks.

use datafusion::config::TableParquetOptions;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::{ParquetReadOptions, SessionConfig};
use futures::StreamExt;

/// Parquet files that are one relation under a name.
#[derive(Debug, Clone)]
pub struct Files {
    /// Name in SQL.
    pub name: String,
    /// Absolute paths.
    pub paths: Vec<String>,
}

/// Reads every row of a query over the files and throws it away; answers how many there were.
pub async fn scan(files: &[Files], sql: &str, parallelism: usize) -> Result<u64> {
    let context = context(files, parallelism).await?;
    let mut rows = context.sql(sql).await?.execute_stream().await?;
    let mut count = 0;
    while let Some(batch) = rows.next().await {
        count += batch?.num_rows() as u64;
    }
    Ok(count)
}

/// Writes the result of a query over the files as parquet into a directory.
pub async fn write(files: &[Files], sql: &str, directory: &str, parallelism: usize) -> Result<()> {
    let context = context(files, parallelism).await?;
    let result = context.sql(sql).await?;
    // As Tributary compresses: DataFusion's own default is a slower level.
    let mut options = TableParquetOptions::default();
    options.global.compression = Some("zstd(1)".to_string());
    result.write_parquet(directory, DataFrameWriteOptions::new(), Some(options)).await.map(drop)
}

async fn context(files: &[Files], parallelism: usize) -> Result<SessionContext> {
    let config = SessionConfig::new().with_target_partitions(parallelism);
    let context = SessionContext::new_with_config(config);
    for relation in files {
        let frame = context.read_parquet(relation.paths.clone(), ParquetReadOptions::default()).await?;
        context.register_table(relation.name.as_str(), frame.into_view())?;
    }
    Ok(context)
}
