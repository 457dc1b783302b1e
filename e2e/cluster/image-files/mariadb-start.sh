#!/bin/sh
# Serves /data, after filling it from the image when it is an empty volume. Ends as mariadbd itself, so that SIGTERM
# reaches it and shuts it down in order.
set -eu
# shellcheck source=mariadb-flags.sh
. /usr/local/share/mariadb-flags.sh
[ -d /data/mysql ] || cp -R /usr/local/share/mariadb-data/. /data/
# max-connect-errors: a probe that opens and closes a connection counts as an error, and at the usual limit the server
# would lock out the probe's address. skip-name-resolve: no DNS question for each connection.
# shellcheck disable=SC2086
exec /usr/sbin/mariadbd $MARIADB_FLAGS --bind-address=0.0.0.0 --port=3306 --skip-name-resolve \
  --max-connections=500 --max-connect-errors=4294967295 --log-warnings=1 \
  --innodb-buffer-pool-size=256M --innodb-log-file-size=64M "$@"
