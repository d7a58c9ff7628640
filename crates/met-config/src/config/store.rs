//! The section `store`: where a server keeps what is too much for files of its own.

use std::path::PathBuf;

use met_store::{Backends, Credentials, Engine, PostgresServer, Secret, StoreError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    pub series: Option<String>,
    pub series_write: Option<String>,
    pub series_tenant: Option<String>,
    pub series_password_file: Option<PathBuf>,
    pub series_token_file: Option<PathBuf>,
    /// May hold a password.
    pub catalogue: Option<Secret>,
    pub password_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
}

impl Store {
    /// Says which keys make no sense together.
    pub fn check(&self) -> Result<(), String> {
        let of_series = [
            ("series_write", self.series_write.is_some()),
            ("series_tenant", self.series_tenant.is_some()),
            ("series_password_file", self.series_password_file.is_some()),
            ("series_token_file", self.series_token_file.is_some()),
        ];
        let given = of_series.into_iter().find(|(_, is_given)| *is_given && self.series.is_none());
        if let Some((name, _)) = given {
            return Err(format!("store.{name} needs store.series, the address that answers queries"));
        }
        if self.password_file.is_some() && self.catalogue.is_none() {
            return Err("store.password_file needs store.catalogue".to_owned());
        }
        if self.series_password_file.is_some() && self.series_token_file.is_some() {
            return Err(
                "store.series_password_file and store.series_token_file: one of them is enough".to_owned()
            );
        }
        Ok(())
    }

    /// What the store is opened with. Files of secrets are read now.
    pub fn backends(&self) -> Result<Backends, StoreError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(Secret::read).transpose();
        let catalogue = match &self.catalogue {
            Some(url) => Some(PostgresServer {
                url: url.clone(),
                password: read(&self.password_file)?,
                ca_file: self.ca_file.clone(),
            }),
            None => None,
        };
        let password = read(&self.series_password_file)?.map(Credentials::Basic);
        let token = read(&self.series_token_file)?.map(Credentials::Token);
        let series = self.series.clone().map(|url| Engine {
            url,
            write_url: self.series_write.clone(),
            credentials: password.or(token),
            tenant: self.series_tenant.clone(),
            ca_file: self.ca_file.clone(),
        });
        Ok(Backends { catalogue, series })
    }
}
