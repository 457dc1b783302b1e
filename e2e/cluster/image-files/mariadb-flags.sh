# Sourced where the data is made and where it is served, so that both agree.
# shellcheck shell=sh disable=SC2034
MARIADB_FLAGS='--no-defaults --datadir=/data --socket=/data/mysqld.sock --pid-file=/data/mysqld.pid --tmpdir=/tmp
  --character-set-server=utf8mb4 --skip-log-bin --innodb-flush-log-at-trx-commit=1'
