//! hudi
