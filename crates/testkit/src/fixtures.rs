// SPDX-License-Identifier: Apache-2.0
//! Tables that Spark wrote, unpacked into a directory of their own.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use zip::ZipArchive;

/// An unpacked table; its directory goes with it.
#[derive(Debug)]
pub struct Fixture {
    root: TempDir,
    table: PathBuf,
}

impl Fixture {
    /// Unpacks `tests/fixtures/<folder>/<name>.zip`, which holds one table folder.
    ///
    /// # Panics
    /// When the archive is missing, broken or holds no table: a test cannot go on without it.
    pub fn unpack(folder: &str, name: &str) -> Self {
        let archive = fixtures_dir().join(folder).join(format!("{name}.zip"));
        let file = File::open(&archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
        let mut zip = ZipArchive::new(file).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
        let root = tempfile::tempdir().unwrap_or_else(|e| panic!("no temporary directory: {e}"));
        zip.extract(root.path()).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
        let table = table_dir(root.path()).unwrap_or_else(|| panic!("{}: no table in it", archive.display()));
        Fixture { root, table }
    }

    /// Whether the archive is there.
    pub fn exists(folder: &str, name: &str) -> bool {
        fixtures_dir().join(folder).join(format!("{name}.zip")).exists()
    }

    /// What a reference reader saw in the table: `tests/fixtures/<folder>/<name>.expected.json`.
    ///
    /// # Panics
    /// When the file is missing.
    pub fn expected(folder: &str, name: &str) -> String {
        let file = fixtures_dir().join(folder).join(format!("{name}.expected.json"));
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    }

    /// The table's directory.
    pub fn path(&self) -> &Path {
        &self.table
    }

    /// The table's directory as a location.
    pub fn url(&self) -> String {
        self.table.to_string_lossy().into_owned()
    }

    /// Where the archive was unpacked.
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn table_dir(root: &Path) -> Option<PathBuf> {
    let mut folders = std::fs::read_dir(root).ok()?.flatten().map(|entry| entry.path());
    folders.find(|folder| folder.join(".hoodie/hoodie.properties").exists())
}

/// Unpacks a whole archive into a directory, over what is there.
///
/// # Panics
/// When the archive is missing or broken.
pub fn unpack_zip(archive: &Path, into: &Path) {
    let file = File::open(archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    let mut zip = ZipArchive::new(file).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    zip.extract(into).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
}
