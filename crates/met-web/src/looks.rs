//! Looks at the processes of the machine: one serves all who ask at about the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use met_host::Host;
use met_query::who::{FirstLook, LOOK_FOR, Look};
use tokio::sync::Mutex;

use crate::answers::Answers;

/// One that is older is not shown any more.
const FRESH_FOR: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Looks {
    last: Mutex<Option<(Instant, Arc<Look>)>>,
}

impl Looks {
    /// A look that is no older than a second. A request that comes while one is taken waits for it, without occupying one
    /// of the threads that make answers. `None` if these are busy for too long.
    pub async fn fresh(&self, host: &Host, answers: &Answers) -> Option<Arc<Look>> {
        let mut last = self.last.lock().await;
        if let Some((_, look)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR) {
            return Some(Arc::clone(look));
        }
        let (before, after) = (host.clone(), host.clone());
        let first = answers.beside(move || FirstLook::take(&before)).await?;
        tokio::time::sleep(LOOK_FOR).await;
        let look = Arc::new(answers.beside(move || first.again(&after)).await?);
        *last = Some((Instant::now(), Arc::clone(&look)));
        Some(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_ask_at_once_share_a_look_and_no_thread_waits_with_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (answers, host) = (Arc::new(Answers::default()), Host::real().unwrap());
            let asking: Vec<_> = (0..8)
                .map(|_| {
                    let (answers, host) = (Arc::clone(&answers), host.clone());
                    tokio::spawn(async move { answers.looks.fresh(&host, &answers).await.unwrap() })
                })
                .collect();
            // Between its two scans, all threads are free.
            while answers.looks.last.try_lock().is_ok() || !answers.makes_nothing() {
                tokio::task::yield_now().await;
            }
            let mut looks = Vec::new();
            for asking in asking {
                looks.push(asking.await.unwrap());
            }
            assert!(looks.iter().all(|look| Arc::ptr_eq(look, &looks[0])));
        });
    }
}
