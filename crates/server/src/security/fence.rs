// SPDX-License-Identifier: Apache-2.0
//! Stores of allowed locations only. Every table and directory is opened through it, and topics are asked for
//! by it, whichever way their location came in.

use std::sync::Arc;

use tributary_hudi::{Error, Result, Storage, Stores};
use tributary_security::Prefixes;

/// Opens what lies within the prefixes.
pub struct FencedStores {
    stores: Arc<dyn Stores>,
    prefixes: Prefixes,
}

impl FencedStores {
    /// The same stores, within the prefixes.
    pub fn around(stores: Arc<dyn Stores>, prefixes: Prefixes) -> Arc<dyn Stores> {
        match prefixes.is_empty() {
            true => stores,
            false => Arc::new(FencedStores { stores, prefixes }),
        }
    }
}

impl Stores for FencedStores {
    fn open(&self, url: &str) -> Result<Storage> {
        self.check(url)?;
        self.stores.open(url)
    }

    fn check(&self, url: &str) -> Result<()> {
        self.prefixes.check(url).map_err(|refused| Error::Location { url: refused.url, detail: refused.why })?;
        self.stores.check(url)
    }
}

#[cfg(test)]
mod tests {
    use tributary_hudi::SystemStores;

    use super::*;

    #[test]
    fn a_topic_outside_of_the_prefixes_is_refused() {
        let prefixes = Prefixes::new(&["kafka://b:9092/clicks".to_string()]).unwrap();
        let stores = FencedStores::around(Arc::new(SystemStores::new()), prefixes);
        assert!(stores.check("kafka://b:9092/clicks").is_ok());
        for outside in ["kafka://b:9092/others", "kafka://b:9092", "kafka://c:9092/clicks", "kafka:///"] {
            let refused = stores.check(outside).unwrap_err().to_string();
            assert!(refused.contains("--allow-url-prefix"), "{refused}");
        }
    }

    #[test]
    fn a_location_outside_of_the_prefixes_is_not_opened() {
        let lake = tempfile::tempdir().unwrap();
        let inside = lake.path().join("orders").display().to_string();
        let prefixes = Prefixes::new(&[lake.path().display().to_string()]).unwrap();
        let stores = FencedStores::around(Arc::new(SystemStores::new()), prefixes);
        assert_eq!(stores.open(&inside).unwrap().url(), inside);
        let refused = stores.open("/etc").unwrap_err().to_string();
        assert!(
            refused.contains("`/etc` is not a table location") && refused.contains("--allow-url-prefix"),
            "{refused}"
        );
    }
}
