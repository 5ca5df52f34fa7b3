// SPDX-License-Identifier: Apache-2.0
//! Authorities and certificates that tests make. Also compiled into the integration tests.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};

/// An authority whose certificates are written into a folder.
pub(crate) struct Authority {
    folder: PathBuf,
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// An authority; its own certificate is `NAME.pem`.
    pub(crate) fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Authority { folder: folder.to_path_buf(), name: name.to_string(), issuer }
    }

    /// File of its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }

    /// A certificate for these names, valid in these years: `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, file: &str, names: &[&str], years: (i32, i32)) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (at, key_at) = (self.folder.join(format!("{file}.pem")), self.folder.join(format!("{file}.key")));
        // The key first: whoever looks in between finds a certificate that does not go with it, and keeps the old pair.
        std::fs::write(&key_at, key.serialize_pem()).unwrap();
        std::fs::write(&at, certificate.pem()).unwrap();
        (at, key_at)
    }
}
