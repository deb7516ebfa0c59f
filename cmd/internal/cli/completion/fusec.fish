# Completion of fusec for fish. fusec itself says what may follow; see complete.go.
function __fusec_complete
	set -l words (commandline -opc)
	set -l current (commandline -ct)
	set -l before (string match -r '^[^=]*=' -- "$current")
	set -l file (string replace -r '^[^=]*=' '' -- "$current")
	for line in ($words[1] __complete $words[2..] "$current" 2>/dev/null)
		switch $line
			case :dirs
				__fish_complete_directories "$file" '' | string replace -r '^' "$before"
			case ':*'
				set -l ending (string escape --style=regex (string sub -s 2 -- $line))
				__fish_complete_path "$file" '' | string match -r ".*$ending\\t?\$" | string replace -r '^' "$before"
			case '*'
				echo $line
		end
	end
end
complete -c fusec -f -a '(__fusec_complete)'
