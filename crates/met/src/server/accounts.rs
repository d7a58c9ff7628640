//! Members of accounts, for a server: from a file, or hourly from the scheduler.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use met_config::{Accounts as Origin, Config, Failure};
use met_core::managers::Scheduler;
use met_jobs::scheduler::{self, Programs};
use met_server::cluster::accounts::{Accounts, memberships};

const EVERY: Duration = Duration::from_secs(3600);
/// After a failure. What was known before stays known.
const AGAIN: Duration = Duration::from_secs(60);

/// Accounts as the configuration says; a thread of its own queries a scheduler.
pub fn start(config: &Config) -> Result<Arc<Accounts>> {
    let (server, schedulers) = (&config.server, &config.schedulers);
    let Origin::Scheduler(scheduler) = server.accounts else {
        let Some(path) = &server.accounts_file else { return Ok(Arc::default()) };
        let read = Accounts::of_file(path);
        return read.map(Arc::new).map_err(|error| Failure::usage(format!("server.accounts_file: {error}")));
    };
    let folders = schedulers.path.iter().flat_map(|path| path.split(':')).map(PathBuf::from);
    let programs = Programs::new(folders, schedulers.timeout);
    let accounts = Arc::<Accounts>::default();
    let known = Arc::clone(&accounts);
    std::thread::Builder::new()
        .name("accounts".to_owned())
        .spawn(move || ask(scheduler, programs, &known))?;
    Ok(accounts)
}

fn ask(scheduler: Scheduler, mut programs: Programs, known: &Accounts) {
    let mut has_failed = false;
    loop {
        let asked = scheduler::members(scheduler, &mut programs);
        match &asked {
            Ok(pairs) => {
                known.replace(memberships(pairs.iter().map(|(user, account)| (&**user, &**account))))
            }
            Err(trouble) if !has_failed => {
                tracing::warn!("server.accounts: {trouble}; members of accounts are as known before");
            }
            Err(_) => {}
        }
        has_failed = asked.is_err();
        std::thread::sleep(if has_failed { AGAIN } else { EVERY });
    }
}
