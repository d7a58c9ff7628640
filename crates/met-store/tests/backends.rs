//! The same claims on every kind of store, with the real servers. What is not installed is skipped and said.
#![allow(clippy::unwrap_used)]

mod servers;
mod suite;

use std::time::{SystemTime, UNIX_EPOCH};

use met_core::job::State;
use met_store::{Backends, Engine, Filter, PostgresServer, Secret, StoreError, Writer};
use servers::{Server, Started};
use suite::{CATALOGUE, Claim, Place, SERIES, finished, running};

/// Half an hour ago: engines want samples of about now.
fn recent_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 - 1800
}

fn there(name: &str, started: Started) -> Option<Server> {
    started.map_err(|why| met_core::skipped::skipped(format!("{name}: {why}"))).ok()
}

/// Side by side: an engine may take ten seconds to show a series that it has not seen before.
fn hold(claims: &[Claim], exact: bool, mut backends: impl FnMut(usize) -> Backends) {
    let start_s = recent_s();
    std::thread::scope(|scope| {
        let places = (0..).map(|number| Place::new(backends(number as usize), start_s + 10 * number, exact));
        let running: Vec<_> = claims
            .iter()
            .zip(places)
            .map(|((name, claim), place)| (name, scope.spawn(move || claim(&place))))
            .collect();
        let failed: Vec<_> =
            running.into_iter().filter_map(|(name, thread)| thread.join().is_err().then_some(name)).collect();
        assert!(failed.is_empty(), "these do not hold: {failed:?}");
    });
}

#[test]
fn postgresql_and_victoria_metrics_do_what_files_do() {
    let Some(postgresql) = there("PostgreSQL", servers::postgresql()) else { return };
    let engine = there("VictoriaMetrics", servers::victoria_metrics());
    let series = engine.as_ref().map(Server::engine);
    let all: Vec<Claim> = CATALOGUE.iter().chain(SERIES).copied().collect();
    hold(&all, false, |number| Backends {
        catalogue: Some(postgresql.database(&format!("claim_{number}"))),
        series: series.clone(),
    });
}

#[test]
fn servers_are_asked_whether_they_would_do() {
    let Some(postgresql) = there("PostgreSQL", servers::postgresql()) else { return };
    let Some(engine) = there("VictoriaMetrics", servers::victoria_metrics()) else { return };
    let backends = Backends { catalogue: Some(postgresql.database("asked")), series: Some(engine.engine()) };
    let probed = || -> Vec<String> {
        backends.probe().into_iter().map(|(what, result)| format!("{what}: {}", result.unwrap())).collect()
    };
    let series = format!("series: http://127.0.0.1:{}", engine.port);
    assert_eq!(probed(), ["catalogue: postgres://127.0.0.1/asked, empty", &series]);
    drop(Place::new(backends.clone(), 0, true).writer());
    assert_eq!(probed(), ["catalogue: postgres://127.0.0.1/asked, schema 8", &series]);
    drop((postgresql, engine));
    assert!(backends.probe().iter().all(|(_, result)| matches!(result, Err(StoreError::Unreachable { .. }))));
}

#[test]
fn prometheus_takes_a_request_without_samples() {
    let Some(prometheus) = there("Prometheus", servers::prometheus()) else { return };
    let backends = Backends { catalogue: None, series: Some(prometheus.engine()) };
    assert!(backends.probe()[0].1.is_ok());
}

#[test]
fn prometheus_does_what_files_do() {
    let Some(prometheus) = there("Prometheus", servers::prometheus()) else { return };
    hold(SERIES, true, |_| Backends { catalogue: None, series: Some(prometheus.engine()) });
}

#[test]
fn writers_of_one_database_come_one_after_the_other() {
    let Some(server) = there("PostgreSQL", servers::postgresql()) else { return };
    let backends = Backends { catalogue: Some(server.database("shared")), series: None };
    let start_s = recent_s();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let backends = backends.clone();
            scope.spawn(move || {
                let place = Place::new(backends, start_s, true);
                let mut writer = place.writer();
                for id in 0..20 {
                    // One job of its own, and one that all of them write.
                    let own = finished(thread * 100 + id + 1000, start_s);
                    writer.put_all(&[own, running(7, start_s)]).unwrap();
                }
            });
        }
    });
    let place = Place::new(backends, start_s, true);
    let writer = place.writer();
    let changes = writer.changed_after(0, 1000).unwrap();
    assert_eq!(changes.len(), 61);
    assert!(changes.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(changes[60].0, 120, "every write has a number, and the last is the newest");
    assert_eq!(writer.newest_change().unwrap(), 120);
}

#[test]
fn a_lost_connection_is_made_again_and_loses_nothing() {
    let Some(server) = there("PostgreSQL", servers::postgresql()) else { return };
    let place =
        Place::new(Backends { catalogue: Some(server.database("lost")), series: None }, recent_s(), true);
    let mut writer = place.writer();
    writer.put(&finished(1, place.start_s)).unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'met'";
    for id in 2..6 {
        server.client().batch_execute(cut).unwrap();
        // The first conflict is reported; a retry succeeds.
        let put = writer.put(&finished(id, place.start_s));
        if let Err(error) = put {
            assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
            writer.put(&finished(id, place.start_s)).unwrap();
        }
    }
    assert_eq!(writer.jobs(&Filter::default()).unwrap().len(), 5);
    drop(server);
    assert!(matches!(writer.put(&finished(9, place.start_s)), Err(StoreError::Unreachable { .. })));
    assert!(matches!(
        Writer::open_with(&place.path().join("other"), &place.backends),
        Err(StoreError::Unreachable { .. })
    ));
}

#[test]
fn a_database_of_a_newer_version_is_left_untouched() {
    let Some(server) = there("PostgreSQL", servers::postgresql()) else { return };
    let place =
        Place::new(Backends { catalogue: Some(server.database("newer")), series: None }, recent_s(), true);
    drop(place.writer());
    // Opened again it is as it was.
    drop(place.writer());
    let mut config = postgres::Config::new();
    let url = server.at("127.0.0.1", "newer", "");
    config
        .host("127.0.0.1")
        .port(server.port)
        .user("met")
        .dbname("newer")
        .password("a pass:word/with@all of it");
    config.connect(postgres::NoTls).unwrap().batch_execute("UPDATE store_version SET version = 99").unwrap();
    let backends = Backends { catalogue: Some(url), series: None };
    let opened = Writer::open_with(place.path(), &backends);
    assert!(matches!(opened, Err(StoreError::Newer { found: 99, .. })));
}

#[test]
fn beyond_this_machine_and_on_request_the_connection_is_encrypted() {
    let Some(server) = there("PostgreSQL", servers::postgresql()) else { return };
    if !server.file("certificate").exists() {
        met_core::skipped::skipped("openssl is not installed");
        return;
    }
    server.database("closed");
    let open = |server: PostgresServer| {
        let state = tempfile::tempdir().unwrap();
        Writer::open_with(state.path(), &Backends { catalogue: Some(server), series: None }).map(drop)
    };
    let trusted = PostgresServer {
        ca_file: Some(server.file("certificate")),
        ..server.at("localhost", "closed", "?sslmode=require")
    };
    open(trusted.clone()).unwrap();
    let untrusting = PostgresServer { ca_file: None, ..trusted.clone() };
    assert!(open(untrusting).unwrap_err().to_string().contains("certificate"), "its CA is not trusted");
    let wrong = PostgresServer { password: Some(Secret::new("wrong")), ..trusted };
    let error = open(wrong).unwrap_err().to_string();
    assert!(error.contains("password authentication failed") && !error.contains("wrong"), "{error}");
}

#[test]
fn an_engine_that_is_gone_loses_no_end() {
    let gone = Engine {
        url: "http://127.0.0.1:1".to_owned(),
        write_url: None,
        credentials: None,
        tenant: None,
        ca_file: None,
    };
    let place = Place::new(Backends { catalogue: None, series: Some(gone) }, recent_s(), true);
    let dir = met_store::inbox::JobDir::claim(place.path(), 1).unwrap();
    dir.write_start(&running(1, place.start_s)).unwrap();
    dir.write_series(&suite::series(place.start_s * 1000, 1000, 9)).unwrap();
    dir.write_end(&finished(1, place.start_s)).unwrap();
    let mut writer = place.writer();
    let imported = writer.import().unwrap();
    assert_eq!((imported.ended.len(), imported.problems.len()), (0, 1));
    assert_eq!(writer.newest().unwrap().unwrap().state, State::Finished, "it is read in place");
    assert!(matches!(writer.series(&finished(2, place.start_s).key), Err(StoreError::Unreachable { .. })));
    // Once it is there, all of it is kept.
    drop(writer);
    let Some(engine) = there("VictoriaMetrics", servers::victoria_metrics()) else { return };
    let backends = Backends { catalogue: None, series: Some(engine.engine()) };
    let mut writer = Writer::open_with(place.path(), &backends).unwrap();
    assert_eq!(writer.import().unwrap().ended.len(), 1);
}
