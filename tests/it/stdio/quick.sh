# A server over stdio for the tests that starts fast: `large` says much, `slow` takes a moment, `ask` asks its client,
# `die` ends it. Its first argument says whether it has started what does not end with it.

say() { printf '{"jsonrpc":"2.0",%s}\n' "$1"; }
text() { say '"id":'"$1"',"result":{"content":[{"type":"text","text":"'"$2"'"}]}'; }

stays="trap '' TERM HUP INT; while :; do sleep 1000; done"
case $1 in
/helper*) sh -c "$stays" </dev/null & ;;
/setsid) setsid sh -c "$stays" </dev/null & ;;
esac

large=xxxxxxxx
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do large=$large$large; done
form='"params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}'
about='"capabilities":{"tools":{}},"serverInfo":{"name":"quick","version":"1"}'

while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in
    # The answer to a question, which is named for its call.
    *'"id":"q'*)
        id=${id#\"q}
        text "${id%\"}" asked
        ;;
    *'"method":"initialize"'*) say '"id":'"$id"',"result":{"protocolVersion":"2025-11-25",'"$about"'}' ;;
    *'"method":"tools/list"'*) say '"id":'"$id"',"result":{"tools":[]}' ;;
    *'"name":"large"'*) text "$id" "$large" ;;
    *'"name":"slow"'*)
        say '"method":"notifications/progress","params":{"progressToken":'"$id"',"progress":1}'
        sleep 0.2
        text "$id" slept
        ;;
    *'"name":"ask"'*) say '"id":"q'"$id"'","method":"elicitation/create",'"$form" ;;
    *'"name":"die"'*) exit 3 ;;
    *'"method":"tools/call"'*) text "$id" x ;;
    esac
done
