#!/bin/sh
# Starts Redis with redis.conf and users.acl of this script's folder. The password of the user "rivulet" is the first line of
# PASSWORD_FILE, which --session-store-password-file also names. Usage: start.sh PASSWORD_FILE [option of redis-server...]
set -eu
folder=$(dirname "$0")
password=$(head -n 1 "$1" | tr -d '\r\n')
shift
[ -n "$password" ] || { echo "start.sh: the password's file has an empty first line" >&2; exit 2; }
hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
umask 077
users=$(mktemp)
sed "s/PASSWORD_SHA256/$hash/" "$folder/users.acl" >"$users"
exec redis-server "$folder/redis.conf" --aclfile "$users" "$@"
